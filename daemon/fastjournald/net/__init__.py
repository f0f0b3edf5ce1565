"""Network shell: connections of clients, from the socket to the engine and back.

listeners, tls, credentials   addresses, accept, handshakes, certificates and tokens
connections                   admission, delivery to sessions, slow and idle clients
poller, stream_transport, plain_socket   transports, which move bytes and wait
session, session_steps, outbox           requests to replies, without IO
shared_batch                  requests of many clients in one call of the engine: the usual path
"""
