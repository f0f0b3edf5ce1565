"""Daemon process for all tests of a module, as a fixture: ``daemon = lasting_daemon()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.daemon_process import DaemonProcess


def lasting_daemon(*options: str) -> Any:
    """Return a fixture that runs a daemon with these options until the tests of the module end."""

    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
        with DaemonProcess(tmp_path_factory.mktemp("daemon"), *options) as process:
            yield process

    return fixture
