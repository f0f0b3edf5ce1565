"""Admission control: what a client may use before it has to wait, or its connection is closed.

memory_budget  bytes that connections hold (max-inflight); connections that are closed for room
turn_budget    work of the event loop for each client, by virtual time (fair queuing)
log_growth     requests that make the log grow, and the room that they wait for (write stall)

Pure: sessions and transports of ``net`` ask, and carry out the waits.
"""
