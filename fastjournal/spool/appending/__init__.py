"""Append of a record to a slot: its encoding, the file, the shared sync, the quota of the spool."""
