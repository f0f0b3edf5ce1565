"""Execution: tasks in processes of this machine, and in executors of Spark."""
