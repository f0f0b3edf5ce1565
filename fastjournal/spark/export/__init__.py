"""Export: live entries of a snapshot as Parquet, on the cores of one machine, without Spark.

snapshot_export  parts, processes, files, manifest
entry_sort       external merge sort by domain, in bounded memory
"""
