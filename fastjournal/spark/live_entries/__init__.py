"""Live entries: the records that carry them, by the live index of a snapshot, and their columns.

entry_parts     partitions: segments, or slices of one
fetch           rows of a part for the view ``entries``, by the places that the index names
"""
