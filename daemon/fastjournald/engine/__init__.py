"""State machine: what a request does, as a pure function of state, request and clock.

engine, context      time, then the handler of a request; the whole state between two requests
handlers             one function for each function of the protocol
authorization        access tokens and their rights
store, value_memory  entries, indexes and log, changed together; eviction of values
dispatcher, waiters, undelivered   work for waiting NEXTs; work that did not arrive
next_options         several domains in one NEXT, a prefix, and their turns
deadlines, job_lifecycle           delays, leases and lives that end; failed attempts
pubsub, key_filter   subscriptions, and the changes that they are notified of; ranges, expressions
invariants           asserts that all indexes agree; for tests
"""
