"""Network shell: connections of clients, from the socket to the engine and back.

- ``listeners``, ``tls``, ``credentials``: addresses, accept, handshakes, certificates and tokens
- ``connections``, ``timeouts``: admission, delivery to sessions, slow and idle clients
- ``poller``, ``stream_transport``, ``plain_socket``: transports, which move bytes and wait
- ``session``, ``session_steps``, ``shared_batch``, ``outbox``: requests to replies, without IO
"""
