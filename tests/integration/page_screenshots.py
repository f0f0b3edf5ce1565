"""Screenshots of the page in headless Chromium: desktop, phone and dark.

    python -m tests.integration.page_screenshots docs

writes those of the documentation, of a daemon with 10,000 domains and hostile names.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from fastjournal.client import SyncClient
from tests.integration.browser import Browser
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import fill_domains, fill_hostile, http_address

WIDE: dict[str, Any] = {"width": 1280, "height": 1000}
PHONE: dict[str, Any] = {"width": 390, "height": 844, "phone": True}

VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "page-desktop": ("/?refresh=0", WIDE),
    "page-phone": ("/?refresh=0", PHONE),
    "page-dark": ("/?refresh=0", WIDE | {"dark": True}),
    "page-entry": ("/entry?key=host00002.example:128:0:0", {"width": 1280, "height": 760}),
}
"""Path and size of each view, by the name of its file."""


def url(daemon: DaemonProcess, path: str) -> str:
    """Return the address of a page."""
    host, port = http_address(daemon)
    return f"http://{host}:{port}{path}"


def screenshots(browser: Browser, daemon: DaemonProcess, directory: Path) -> list[Path]:
    """Write a screenshot of each view."""
    files = []
    for name, (path, size) in VIEWS.items():
        browser.view(**size)
        browser.open(url(daemon, path))
        file = directory / f"{name}.png"
        browser.screenshot(file)
        files.append(file)
    return files


def fill(client: SyncClient) -> None:
    """Fill a daemon with 10,000 domains and hostile names; the client works on some entries."""
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
        closing(SyncClient(daemon.address)) as client,
        Browser() as browser,
    ):
        fill(client)
        for file in screenshots(browser, daemon, Path(sys.argv[1])):
            print(file, file.stat().st_size)


if __name__ == "__main__":
    main()
