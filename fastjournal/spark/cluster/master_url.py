"""Master URLs of Spark: their forms, and whether a standalone master listens.

Java takes seconds to start, and tells of a wrong master by a stack trace; of one that does not
listen after more than a minute.
"""

from __future__ import annotations

import re
import socket

from fastjournal.errors import BadRequestError, CannotConnectError

CONNECT_TIMEOUT_S = 10.0
"""For each address of a standalone master."""

_N = r"\s*[1-9][0-9]*\s*"
_LOCAL = rf"local(\[([1-9][0-9]*|\*)(\s*,{_N})?\])?"
_LOCAL_CLUSTER = rf"local-cluster\[{_N},{_N},{_N}\]"
_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[^\s,:/\[\]]+):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://({_ADDRESS}(,{_ADDRESS})*)")
_FORMS = re.compile(rf"{_LOCAL}|{_LOCAL_CLUSTER}|{_STANDALONE.pattern}|yarn|k8s://\S+")


def check_master(master: str | None, option: str = "master") -> None:
    """Check the form of a master URL.

    Args:
        master: Spark's master URL; None: none is given.
        option: Name of the option in the error.

    Raises:
        BadRequestError: Spark knows no such one.
    """
    if master is not None and not _FORMS.fullmatch(master):
        raise BadRequestError(
            f"{option} {master!r} is no master of Spark",
            hint="local[N], local[*], local-cluster[N,CORES,MEMORY], spark://HOST:PORT, yarn "
            "or k8s://ADDRESS",
        )


def check_listens(master: str | None) -> None:
    """Check that a standalone master (``spark://``) listens; others are not asked.

    Raises:
        CannotConnectError: It does not, at none of its addresses.
    """
    standalone = None if master is None else _STANDALONE.fullmatch(master)
    if standalone is None:
        return
    failures = []
    for address in standalone[1].split(","):
        host, _, port = address.rpartition(":")
        try:
            connection = (host.strip("[]"), int(port))
            socket.create_connection(connection, timeout=CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            failures.append(str(error))
        else:
            return
    raise CannotConnectError(f"no Spark master listens at {master}: {', '.join(failures)}")
