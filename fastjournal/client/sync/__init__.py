"""Blocking client over sockets of the standard library.

client       ``SyncClient``: connection and methods, made from ``core.calls``
connection, dialer, transport   send, receive, reconnect
jobs, job_loop, lease_keeper    leased jobs, loops, renewal by a thread for each loop
listen, locks                   subscriptions, locks
waiting                         waits that signals and ``stop`` can end
"""
