"""Blocking client over sockets of the standard library.

client       ``SyncClient``: connection and methods, made from ``core.calls``
connection, dialer, transport, sockets   send, receive, reconnect
jobs, job_loop   leased jobs, loops, renewal by a thread for each loop
listen           subscriptions
waiting                         waits that signals and ``stop`` can end
"""
