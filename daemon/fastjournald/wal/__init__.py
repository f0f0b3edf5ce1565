"""Write-ahead log: what changes of persistent entries become as log records. Pure.

journal         a method for each change; appends to the buffer of ``cmdlog.writer``
lease_journal   the same for leases
record_encoder  the bytes of a record, from cached parts; which entries have further records
segment_usage   live bytes of each segment
live_capture    the live index of a snapshot, by copy on write
"""
