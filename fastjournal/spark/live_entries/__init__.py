"""Live entries: the records that carry them, by the live index of a snapshot, and their columns.

entry_parts     partitions: segments, or slices of one
fetch           rows of a part, by the places that the index names
log_replay      the same for a log without an index, by a replay
entries_reader  the view ``entries``
"""
