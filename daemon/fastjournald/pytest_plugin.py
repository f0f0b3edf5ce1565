"""Plugin of pytest: the fixture ``fastjournal_daemon``, which loads the daemon at its first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastjournald.testing import FastjournalDaemon


@pytest.fixture
def fastjournal_daemon() -> Iterator[FastjournalDaemon]:
    """Empty daemon in this process, with a clock that the test moves."""
    from fastjournald.testing import FastjournalDaemon  # noqa: PLC0415 - few tests need it

    with FastjournalDaemon() as daemon:
        yield daemon
