"""Execution: tasks on cores and executors, and relations beyond memory (DuckDB, sort, shards)."""
