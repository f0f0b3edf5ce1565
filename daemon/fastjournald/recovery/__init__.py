"""Recovery: from the files of the log to an engine that goes on where it stopped.

recover      read, check and replay the log (``fastjournal.cmdlog.recovery``), then load the engine
scan_worker  a second process that reads and checks segments ahead
bulk_load    entries and all indexes from the replay state, once, in order

An archive of the history is opened here too.
"""
