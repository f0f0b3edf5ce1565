"""Export: live entries of a snapshot as Parquet, on the cores of one machine, without Spark."""
