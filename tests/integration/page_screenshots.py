"""Screenshots of the page in headless Chromium: desktop, phone and dark.

    python -m tests.integration.page_screenshots docs 12

writes those of the documentation, of a small company after so many minutes of work. Tests look at
the same pages with 10,000 domains and hostile names.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from fastjournal.client import SyncClient
from tests.integration.browser import Browser
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import fill_domains, fill_hostile, http_address

WIDE: dict[str, Any] = {"width": 1280, "height": 1000}
PHONE: dict[str, Any] = {"width": 360, "height": 780, "phone": True}

VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "page-desktop": ("/?refresh=0", WIDE),
    "page-phone": ("/?refresh=0", PHONE),
    "page-dark": ("/failing", {"width": 1280, "height": 500, "dark": True}),
    "page-entry": ("/entry?key=host00002.example:128:0:0", {"width": 1280, "height": 760}),
}
"""Path and size of each view, by the name of its file."""

DOCUMENTED = VIEWS | {
    "page-entry": ("/entry?key=https%3A%2F%2Fshop.example%2Fitem%2F7", VIEWS["page-entry"][1]),
    "page-workers": ("/workers", {"width": 1280, "height": 600}),
}
"""The same of the documentation."""


def url(daemon: DaemonProcess, path: str) -> str:
    """Return the address of a page."""
    host, port = http_address(daemon)
    return f"http://{host}:{port}{path}"


def screenshots(
    browser: Browser,
    daemon: DaemonProcess,
    directory: Path,
    views: Mapping[str, tuple[str, dict[str, Any]]],
) -> list[Path]:
    """Write a screenshot of each view."""
    files = []
    for name, (path, size) in views.items():
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


def work(client: SyncClient, minutes: float) -> None:
    """Work for so many minutes in a small company with troubles."""
    for domain, attempts in (("mails", 3), ("invoices", 1)):
        client.limit(domain, attempts=attempts)
    for at in range(4):
        client.enqueue("reports", "x", uri=f"https://shop.example/report/{at}")
    client.enqueue("search", "x", uri="https://shop.example/item/7")
    client.next("search", lease=3600)
    client.enqueue("search", "x", uri="https://shop.example/item/7")
    client.pause("newsletter", 86_400)
    for at in range(300):
        client.enqueue("newsletter", "x", uri=f"mailto:reader{at}@shop.example")
    draw, end, number = Random(7), monotonic() + 60 * minutes, 0
    while monotonic() < end:
        for domain in draw.sample(["mails", "invoices", "thumbnails"], draw.randint(1, 3)):
            number += 1
            client.enqueue(domain, str(number), uri=f"{domain}:{number}")
            for job in (jobs := client.next(domain)):
                assert jobs.token is not None
                serial = int(job.value)
                if domain == "mails" and serial % 7 == 0:
                    error = f"SMTP 550 5.1.1 no such user {serial}@shop.example"
                    client.release(job.key, jobs.token, delay=0, error=error)
                elif domain == "mails" and draw.random() < 0.02:
                    client.release(job.key, jobs.token, delay=600, error="SMTP 451 try later")
                elif domain == "invoices" and serial % 31 == 0:
                    client.release(job.key, jobs.token, error=f"KeyError: {serial}")
                else:
                    client.delete(job.key, token=jobs.token)
        sleep(draw.random())
    for _ in range(3):
        client.enqueue("mails", "1", unique=str(draw.random()))
        client.next("mails", lease=300)


def main() -> None:
    """Write the screenshots to the directory of the first argument."""
    directory, minutes = Path(sys.argv[1]), float(sys.argv[2])
    with (
        tempfile.TemporaryDirectory() as log,
        DaemonProcess(Path(log), "--http", "127.0.0.1:0") as daemon,
        closing(SyncClient(daemon.address)) as client,
        closing(SyncClient(daemon.address)) as idle,
        ThreadPoolExecutor(1) as pool,
        Browser() as browser,
    ):
        waits = pool.submit(idle.next, ["exports", "imports"], wait=86_400)
        work(client, minutes)
        for file in screenshots(browser, daemon, directory, DOCUMENTED):
            print(file, file.stat().st_size)
        client.enqueue("exports", "x")
        waits.result()


if __name__ == "__main__":
    main()
