"""Blocks of commands to adapt (``console``): run with the places of a test, in the page's order."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks, run_script
from tests.docs.test_code_blocks import PAGES
from tests.integration.daemon_process import DaemonProcess
from tests.system.staging import ROOT

RECORDED = ROOT / "tests/format/data"
JOURNALS = {
    "workq": RECORDED / "workq/basic",
    "beanstalkd": RECORDED / "beanstalkd/stopped",
    "kestrel": RECORDED / "kestrel/one-file",
}
NAME = "20261120T101112.123456Z"
"""Snapshot of the pages."""

START = """
start() {
    COMMAND --listen unix:$PWD/socket --ready-file $PWD/ready 2>>daemon.log & daemon=$!
    until test -e ready; do kill -0 $daemon; sleep 0.05; done
}
export FASTJOURNAL_SERVER=unix:$PWD/socket
"""
"""Function that starts a daemon with the command of a page, and waits for it."""

MACHINE = """
systemctl() { case $1 in stop) kill $daemon; wait $daemon ;; start) start ;; esac; }
chown() { test "$1" = -R -a "$2" = fastjournal: ; }
command -v rsync >/dev/null || rsync() { cp -r "$2" "$3"; }
"""
"""Root and systemd are not needed here."""

NOT_RUN = {
    "make install-systemd": "system/test_systemd_units.py installs them",
    "pip install 'fastjournal[spark,cli]'": "installs Spark",
    "python -m venv environment": "installs Spark",
    "fj-nightly --server": "spark/test_spark_nightly.py runs it",
    "systemctl disable --now": "needs Pacemaker on two machines",
    "rsync -a --fsync": "docs/test_two_machines.py pulls an archive",
}
"""Beginnings of blocks that are not run, and the reason."""


def console_blocks(page: str) -> list[str]:
    """Return the blocks of a page that are to be run."""
    found = [block for language, block in blocks(PAGES[page]) if language == "console"]
    return [block for block in found if not block.startswith(tuple(NOT_RUN))]


def test_page_console_block_is_run_or_has_a_reason() -> None:
    all_blocks = [
        block
        for text in PAGES.values()
        for language, block in blocks(text)
        if language == "console"
    ]
    for beginning in NOT_RUN:
        assert any(block.startswith(beginning) for block in all_blocks), beginning
    assert {page for page in PAGES if console_blocks(page)} == RUN


RUN = {f"docs/{name}.md" for name in ("migrating", "operating", "security", "spool", "workq")}


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory(prefix="fj-") as path, DaemonProcess(Path(path)) as process:
        yield process


@pytest.fixture
def place() -> Iterator[Path]:
    """Directory with a path that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="fj-") as path:
        yield Path(path)


def run(page: str, place: Path, before: str, changes: dict[str, str], server: str = "") -> str:
    """Run the blocks of a page; return what they printed.

    Args:
        page: Path of the page.
        place: Where they run; the directory of journals has copies of what is recorded.
        before: Commands in front of them.
        changes: Texts of the page, each of which is there, and what takes their place.
        server: Address of a daemon that runs.
    """
    for name, recorded in JOURNALS.items():
        shutil.copytree(recorded, place / name)
    script = "".join(console_blocks(page))
    for text, other in changes.items():
        assert text in script, text
        script = script.replace(text, other)
    script = f"set -euo pipefail\n{before}\n{script}".replace("/var/lib/", f"{place}/")
    variables = {"FASTJOURNAL_SERVER": server} if server else {}
    status, printed = run_script(script, place, **variables)
    assert status == 0, f"{script}\n{printed}"
    return printed


def test_page_console_blocks_of_operating_back_up_and_restore(place: Path) -> None:
    (place / "fastjournald.toml").write_text(
        f'cmdlog_path = "{place}/check"\nlisten = ["127.0.0.1:0"]\n', encoding="utf-8"
    )
    (place / "srv").mkdir()
    command = "fastjournald --cmdlog-path /var/lib/fastjournal/cmdlog"
    started = START.replace("COMMAND", f"{command} --snapshot-dir /var/lib/fastjournal/snapshots")
    url = "https://example.org/page"
    printed = run(
        "docs/operating.md",
        place,
        started + MACHINE,
        {
            f"{command}\n": f"start\nfj-cli set --domain pages --uri {url} new >key\n",
            "--config /etc/fastjournal/": "--config ",
            "--keep 7\n": f"--keep 7\nmv fastjournal/snapshots/* fastjournal/snapshots/{NAME}\n",
            "backup:/srv/fastjournal/": "srv/",
            "/srv/fastjournal/": "srv/",
            "/var/spool/kestrel": "kestrel",
            "fj-cli import workq": f"echo restored\nfj-cli get {url} --json\nfj-cli import workq",
        },
    )
    backed_up, restored = printed.split("restored\n")
    assert backed_up.startswith("ok\n")  # the configuration
    assert url in restored.splitlines()[0]
    assert restored.count('"imported"') == 3


def test_page_console_blocks_of_journals_read_write_and_import(
    place: Path, daemon: DaemonProcess
) -> None:
    snapshot = "fj-cli snapshot --json | grep -o '/[^\"]*' >snapshot"
    changes = {
        " DIR": " workq",
        f"/var/lib/fastjournal/snapshots/{NAME}": "$(cat snapshot)",
        "--to beanstalkd /var/lib/beanstalkd": "--to beanstalkd written",
    }
    run("docs/migrating.md", place, snapshot, changes, daemon.address)
    assert list((place / "written").iterdir())
    for name in JOURNALS:
        shutil.rmtree(place / name)
    assert '"imported"' in run("docs/workq.md", place, "", {}, daemon.address)


def test_page_console_blocks_of_spool_put_forward_and_look(
    place: Path, daemon: DaemonProcess
) -> None:
    line = '{"uri": "https://example.org/b", "value": "text"}'
    printed = run(
        "docs/spool.md",
        place,
        f"echo '{line}' >work.jsonl",
        {
            "fj-forwarder --spool /var/spool/fastjournal": "fj-forwarder --once --spool other",
            "dead list DIR": "dead list DIR || test $? = 75",
            " DIR": " spool",
            "127.0.0.1:9923": daemon.address,
        },
        daemon.address,
    )
    assert '"pending":2' in printed
    assert '"example.org"' in printed


def test_page_console_blocks_of_security_connect_by_mutual_tls(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    printed = run(
        "docs/security.md",
        place,
        "",
        {
            "192.0.2.7": "127.0.0.1",
            "0.0.0.0:9923": address,
            "queue.example:9923": address,
            "--tls-client-ca ca.pem ...\n": (
                "--tls-client-ca ca.pem --cmdlog-path log --ready-file ready &\n"
                "until test -e ready; do kill -0 $!; sleep 0.05; done\n"
            ),
        },
    )
    assert '"entries":0' in printed
