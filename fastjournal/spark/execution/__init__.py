"""Execution: tasks in processes of this machine, and in executors of Spark.

cluster_tasks  processes of their own, this one, or the executors of a session: one interface
"""
