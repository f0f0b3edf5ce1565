"""Execution: tasks in processes of this machine, and in executors of Spark.

process_pool   processes of their own, or this one
cluster_tasks  the executors of a session, behind the same interface
"""
