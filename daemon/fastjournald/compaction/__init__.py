"""Log compaction: removal of dead records from sealed segments. The rules are pure.

policy           which segment is a candidate, and when it is looked at again
liveness         whether a record is still needed
segment_filter   the records of a segment that stay, in slices
compact_segment  one segment from candidate to replacement, with copy-forward, as a generator
backpressure     size of the log from which writers wait

``tasks/compactor`` runs it beside requests.
"""
