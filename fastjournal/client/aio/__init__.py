"""Client for programs that run on trio or asyncio, by anyio.

client       ``Client``: connection and methods, made from ``core.calls``
connection   tasks of a connection: send, receive, reconnect
jobs, job_loop, lease_keeper   leased jobs, loops, renewal by a task for each job
listen, mirror, locks          subscriptions, copies of a set of keys, locks
streams, event_loop            the parts that differ between trio and asyncio
"""
