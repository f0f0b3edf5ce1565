"""Append of a record to a slot: its encoding, the file, the shared sync, the quota of the spool.

spool_writer  ``Spool``: the frame of a SET; threads, signal handlers and forks around an append
slot_files    the slot of now, by name
appendfile    the file that is appended to, and the sync that durable appends share
"""
