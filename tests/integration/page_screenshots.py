"""Screenshots of the page in headless Chromium: desktop, phone and dark.

    python -m tests.integration.page_screenshots docs

writes those of the documentation, of a daemon with 10,000 domains and hostile names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fastjournal.client import SyncClient
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import fill_domains, fill_hostile, http_address

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

VIEWS = {
    "page-desktop": ("--window-size=1280,1000",),
    "page-phone": ("--window-size=500,1000",),
    "page-dark": ("--window-size=1280,1000", "--blink-settings=preferredColorScheme=0"),
}
"""Views by the name of their file."""


def chromium(daemon: DaemonProcess, path: str, *options: str) -> str:
    """Let the browser open a page; return what it writes."""
    assert CHROMIUM is not None
    host, port = http_address(daemon)
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                CHROMIUM,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", f"--user-data-dir={profile}"),
                *("--timeout=5000", *options),
                f"http://{host}:{port}{path}",
            ],
            capture_output=True,
            text=True,
            timeout=3 * START_S,
            check=True,
        )
    return done.stdout


def screenshots(daemon: DaemonProcess, directory: Path) -> list[Path]:
    """Write a screenshot of each view of the overview."""
    files = []
    for name, options in VIEWS.items():
        file = directory / f"{name}.png"
        chromium(daemon, "/?refresh=0", *options, f"--screenshot={file}")
        files.append(file)
    return files


def fill(daemon: DaemonProcess) -> None:
    """Fill a daemon with 10,000 domains and hostile names."""
    with closing(SyncClient(daemon.address)) as client:
        fill_hostile(client)
        fill_domains(client, 10_000)
        for at in range(3):
            for number in range(40 * (at + 1)):
                client.set(f"host{at:05}.example:128:0:{number}", "x", persist=False)
            client.next(f"host{at:05}.example", count=4)
        client.pause("host00002.example", 300 * 86_400)
        client.limit("host00001.example", jobs=2)


def main() -> None:
    """Write the screenshots to the directory of the first argument."""
    with (
        tempfile.TemporaryDirectory() as directory,
        DaemonProcess(Path(directory), "--http", "127.0.0.1:0", "--cmdlog-sync", "os") as daemon,
    ):
        fill(daemon)
        for file in screenshots(daemon, Path(sys.argv[1])):
            print(file, file.stat().st_size)


if __name__ == "__main__":
    main()
