"""Records: readers and stream of the view ``records``, and the identity of their segments.

records_reader   partitions and rows of a log, snapshot or archive
stream_segments  offsets of a stream, and what shows that a segment is another one
"""
