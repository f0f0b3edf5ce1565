"""Fork server of a probe (``start_probe.py``), which reports the state that it starts in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration import programs
from tests.integration.programs import PRELOADED, ForkServers

SHEBANG = f"#!{sys.executable}\n"
if " " in sys.executable:
    # as pip writes it: a path with a blank is read by a shell first, and is a string for Python
    SHEBANG = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"

PROBE = f"""{SHEBANG}\
import sys
from tests.integration.start_probe import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""The script."""


@contextmanager
def probe_servers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    """Give servers of a probe, whose script is ``installed("probe")``."""
    if programs.open_servers() is None:
        pytest.skip("nothing is forked")
    script = directory / "scripts" / "probe"
    script.parent.mkdir()
    script.write_text(PROBE)
    script.chmod(0o755)
    servers = ForkServers()
    monkeypatch.setitem(PRELOADED, "probe", ())
    monkeypatch.setattr(programs, "installed", lambda name: str(script.parent / name))
    monkeypatch.setattr(programs, "entry_point", lambda _: "tests.integration.start_probe:main")
    monkeypatch.setattr(programs, "_fork_servers", servers)
    yield servers
    servers.close()
