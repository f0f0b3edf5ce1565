"""State machine: what a request does, as a pure function of state, request and clock.

engine       time, then the handler of a request; ``step`` continues a scan
handlers     one function for each function of the protocol
store        entries, indexes and log, changed together
dispatcher   work for waiting NEXTs, and the order in which they get it
deadlines, job_lifecycle   delays, leases and lives that end; failed attempts
pubsub       subscriptions, and the changes that they are notified of
invariants   asserts that all indexes agree; for tests
"""
