"""Client for programs that run on trio or asyncio, by anyio.

client       ``Client``: connection and methods, made from ``core.calls``
connection, transport   tasks of a connection: send, receive, reconnect
jobs, job_loop          leased jobs, loops, renewal by a task of the client
listen, mirror          subscriptions, copies of a set of keys
streams, event_loop            the parts that differ between trio and asyncio
"""
