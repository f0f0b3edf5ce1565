"""Data source ``fastjournal`` of Spark: its registration, and the readers of its views."""
