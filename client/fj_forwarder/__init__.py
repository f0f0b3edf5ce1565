"""fj-forwarder: sends the records of a spool to the daemon, and erases those that are safe there.

storage    reads a record from its slot, and erases it there
sending    decides when a record is sent, and what the reply means
delivery   takes records from storage to sending, and the effects of replies back
forwarder  moves the bytes
main, reporting, http_metrics   the command line, the status file, metrics
"""
