"""Live entries: which records make the entries of a log (query plan), their fetch and their replay.

On one machine ``fastjournal.spark.export`` runs this, in Spark ``entries_view``.
"""
