"""Quick start of docs/quickstart.md, block for block; after the installation in an own network."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.docs.pages import check_output, run_script, script_of, steps
from tests.system.staging import ROOT, make_environment

PLACE = "/tmp/quickstart"
PAGE_SECONDS_MAX = 600
"""The title promises it; the reader pastes, and the machine is a slow one."""
PINS = dict.fromkeys(
    ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), (ROOT / "constraints.txt").as_uri()
)
# most of what is installed is never imported
PINS["PIP_COMPILE"] = "0"
PORTS = ("9923", "9924", "9926")
OWN_NETWORK = ("unshare", "--net", "--map-root-user")
ALERT = re.compile(r"expr: (\w+\{[^}]*\}) > 0$", re.MULTILINE)


def test_quickstart_ends_with_a_worker_a_page_and_an_alert() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert "in ten minutes" in page
    (install, printed), *tour = steps(page)
    assert not printed
    activate = next(line for line in install.splitlines(True) if "activate" in line)
    if shutil.which("promtool") is None or shutil.which("prometheus") is None:
        tour = without_prometheus(tour)
    script, prefix = activate + script_of(tour), own_network()
    if prefix:
        script = f"ip link set lo up\n{script}"
    else:
        script = with_free_ports(script)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        place = Path(directory, "quickstart")
        environment, install = install.split("\n", 1)
        assert environment == f"python3 -m venv {PLACE}/venv"
        make_environment(place / "venv", "daemon", "cli")
        install, script = (each.replace(PLACE, str(place)) for each in (install, script))
        # what it installs is all that the programs import; the tour starts the two others
        install = f"set -e\n{install}fj-forwarder --version\nfj-nightly --version\n"
        status, shown = run_script(install, Path(directory), cwd=ROOT, **PINS)
        assert status == 0, shown
        assert (place / "venv/bin/fastjournald").exists()
        status, shown = run_script(script, Path(directory), cwd=ROOT, prefix=prefix)
        assert status == 0, shown
        check_output(tour, shown)
        assert not place.exists()
    assert time.monotonic() - began < PAGE_SECONDS_MAX


def own_network() -> tuple[str, ...]:
    """Return the command that runs another in a network of its own; empty: it is not allowed."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return ()
    done = subprocess.run([*OWN_NETWORK, "ip", "link", "set", "lo", "up"], check=False)
    return OWN_NETWORK if done.returncode == 0 else ()


def with_free_ports(script: str) -> str:
    """Return a script with ports that nobody uses now."""
    with ExitStack() as stack:
        for port in PORTS:
            free = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free.getsockname()[1]}")
    http = re.search(r"--http (\S+)", script)
    assert http is not None
    scrape = f"cd {PLACE}\nsed -i 's/127.0.0.1:9924/{http[1]}/' monitoring/prometheus.yml\n"
    script = script.replace(f"cd {PLACE}\n", scrape)
    # commands without an address find the daemon all the same
    address = re.search(r'SyncClient\("([^"]+)"\)', script)
    assert address is not None
    listen = f"--cmdlog-path log --listen {address[1]}"
    return f"export FASTJOURNAL_SERVER={address[1]}\n" + script.replace("--cmdlog-path log", listen)


def without_prometheus(tour: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the steps with a look at the metric of the alert where Prometheus would look."""
    rule = next(found[1] for commands, _ in tour if (found := ALERT.search(commands)))
    kept = []
    for commands, printed in tour:
        if ALERT.search(commands):
            look = f"curl -s http://127.0.0.1:9924/metrics | grep -F '{rule}'\nprometheus=\n"
            kept.append((look, f"{rule} 1.0\n"))
        else:
            lines = [line for line in commands.splitlines(True) if "promtool" not in line]
            kept.append(("".join(lines), printed))
    return kept
