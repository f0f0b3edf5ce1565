"""Access to the page: local names only, and a token where clients of the daemon need one.

--http listens on loopback. A browser reaches loopback for any site that makes its own name resolve
to it (DNS rebinding), so the pages and ``/metrics``, which show names, answer to local names alone.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from http import HTTPStatus
from ipaddress import ip_address

import trio

from fastjournal.limits import AUTH_FAILURE_SECONDS, AUTH_TOKEN_BYTES_MAX
from fastjournal.protocol.declaration import Right
from fastjournald.engine.authorization import Grants
from fastjournald.observability.http_app import PageRequest, PageResponse, plain

LOG = logging.getLogger("fastjournald")

NOT_LOCAL = "this page is for local names: open it as http://localhost:PORT/ or 127.0.0.1:PORT"
NEEDS_TOKEN = "this page needs a token with the right read and the prefix '', as the password"

_CHALLENGE = ((b"www-authenticate", b'Basic realm="fastjournald: token as password"'),)


async def refusal(grants: Grants | None, request: PageRequest) -> PageResponse | None:
    """Return why a page is not shown; None: it is.

    A wrong token is answered after a second, as AUTH is, and its connection is closed.

    Args:
        grants: Tokens of the daemon; None: clients need none.
        request: Request, with its header fields.
    """
    refused = refusal_of_name(request)
    if refused is not None or grants is None:
        return refused
    token = token_of(request.headers.get(b"authorization", b""))
    if token is not None:
        grant = grants.find(token)
        if grant is not None and grant.covers_everything and grant.rights & Right.READ:
            return None
        LOG.info(
            "event=auth-failed peer=%s http=%r",
            request.peer,
            "wrong token, or one without read and the prefix ''",
        )
        await trio.sleep(AUTH_FAILURE_SECONDS)
        return _unauthorized((b"connection", b"close"))
    return _unauthorized()


def refusal_of_name(request: PageRequest) -> PageResponse | None:
    """Return why a path with names of domains is not shown to this Host; None: it is."""
    if is_local(request.headers.get(b"host", b"")):
        return None
    return plain(HTTPStatus.MISDIRECTED_REQUEST, NOT_LOCAL)


def _unauthorized(*headers: tuple[bytes, bytes]) -> PageResponse:
    return plain(HTTPStatus.UNAUTHORIZED, NEEDS_TOKEN)._replace(headers=(*_CHALLENGE, *headers))


def token_of(field: bytes) -> bytes | None:
    """Return the password of the header field Authorization, whatever the user name is."""
    scheme, _, coded = field.partition(b" ")
    if scheme.lower() != b"basic" or len(coded) > 2 * AUTH_TOKEN_BYTES_MAX:
        return None
    try:
        return b64decode(coded, validate=True).partition(b":")[2]
    except ValueError:
        return None


def is_local(host: bytes) -> bool:
    """Whether the header field Host names this machine: localhost or a loopback address."""
    name = host.decode("ascii", "replace").lower()
    name = name.partition("]")[0].strip("[") if name.startswith("[") else name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
