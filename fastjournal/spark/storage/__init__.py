"""Storage: log directories, tables and locks, on a disk of this machine or in an object store.

files         log directories and snapshots on any file system that pyarrow reaches
table_files   files of events and of tables, put whole
remote_checkpoints  checkpoints of a remote log, as snapshots
store_frames  frames of Spark that are read and written through pyarrow
"""
