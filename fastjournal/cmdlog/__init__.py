"""Command log: workq's file format, and how entries are in it (docs/cmdlog.md).

format       bytes of records: encoder and decoder
writer       appends, writes, syncs and seals segments
recovery     scan, replay, damage report, repair
snapshot, live_index, archive   links of a log at an instant; its live entries; its history
locks, read_value               locks of a log directory; one value by its location
"""
