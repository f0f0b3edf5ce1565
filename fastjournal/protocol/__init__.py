"""The FJ/JR protocol, version 1, without IO: messages, their bytes, and both ends of a connection.

A daemon or client moves bytes between a socket and a connection object:

    connection = ServerConnection()
    connection.receive_data(data)
    for request in connection.next_events():
        ...

requests, replies, values, framing   messages to bytes and back
messages, constants, functions       types, numbers, and the declaration of each function
connection_ends                      ``ServerConnection``, ``ClientConnection``

The contract is docs/protocol.md.
"""

from fastjournal.errors import BadRequestError, ProtocolError
from fastjournal.protocol.connection_ends import (
    CONNECTION_CLOSED,
    NEED_DATA,
    ClientConnection,
    ServerConnection,
    Signal,
)
from fastjournal.protocol.constants import (
    QUERY_MASK,
    QUERY_SHIFT,
    VALUE_MASK,
    VALUE_SHIFT,
    VERSION,
    ErrorCode,
    Flag,
    Function,
    Query,
    State,
    ValueType,
)
from fastjournal.protocol.messages import Meta, Pair, Reply, Request
from fastjournal.protocol.replies import (
    SUCCESS_BYTES,
    SUCCESS_BYTES_MAX,
    ReplyEncoder,
    decode_reply,
    encode_error,
    encode_reply,
    encode_reply_to,
    encode_success,
    encode_success_of,
    encode_successes,
)
from fastjournal.protocol.requests import decode_request, encode_request
from fastjournal.protocol.values import Value, decode_value, encode_value

__all__ = [
    "CONNECTION_CLOSED",
    "NEED_DATA",
    "QUERY_MASK",
    "QUERY_SHIFT",
    "SUCCESS_BYTES",
    "SUCCESS_BYTES_MAX",
    "VALUE_MASK",
    "VALUE_SHIFT",
    "VERSION",
    "BadRequestError",
    "ClientConnection",
    "ErrorCode",
    "Flag",
    "Function",
    "Meta",
    "Pair",
    "ProtocolError",
    "Query",
    "Reply",
    "ReplyEncoder",
    "Request",
    "ServerConnection",
    "Signal",
    "State",
    "Value",
    "ValueType",
    "decode_reply",
    "decode_request",
    "decode_value",
    "encode_error",
    "encode_reply",
    "encode_reply_to",
    "encode_request",
    "encode_success",
    "encode_success_of",
    "encode_successes",
    "encode_value",
]
