"""The datagram that tells the service manager about a state."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fastjournal.sdnotify import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_state_arrives_at_the_named_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@fastjournal-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1\nSTATUS=ready")
        assert manager.recv(100) == b"READY=1\nSTATUS=ready"


@pytest.mark.parametrize("address", [None, "", "relative", "/no/such/socket"])
def test_sdnotify_does_nothing_without_a_manager(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")
