"""Client core: the rules of both clients. Sans-IO, no clock.

calls        a function for each request, which builds it and reads its reply
multiplexer  identifiers, replies and notifications of one connection
pipeline, retry_policy   which requests are sent again after a lost connection
leased_job, held_lease, poll_loop   jobs from delivery to completion, renewal, loops
failures     the ways in which a connection fails, each with code, sentence and hint
address, settings, client_credentials, worker_options   what a client is given
results, changes, stats, delivery_reasons, failed_attempts   what it returns
"""
