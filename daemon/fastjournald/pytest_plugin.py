"""Plugin of pytest: the fixture ``fastjournal_daemon``, which loads the daemon at its first use.

pytest loads it in each run beside an installed fastjournal, also where the extra is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastjournald.testing import FastjournalDaemon


@pytest.fixture
def fastjournal_daemon() -> Iterator[FastjournalDaemon]:
    """Empty daemon in this process, with a clock that the test moves."""
    from fastjournal.entry_points import check_extra  # noqa: PLC0415 - few tests need it
    from fastjournal.errors import FastjournalError  # noqa: PLC0415 - as above

    try:
        check_extra("test")
    except FastjournalError as error:
        pytest.fail(f"fastjournal_daemon: {error}", pytrace=False)
    from fastjournald.testing import FastjournalDaemon  # noqa: PLC0415 - few tests need it

    with FastjournalDaemon() as daemon:
        yield daemon
