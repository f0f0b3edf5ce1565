"""The page in a real browser: nothing runs, nothing is loaded, it fits, its figures are right."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fastjournal.client import SyncClient
from tests.integration.browser import CHROMIUM, Browser
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import HOSTILE
from tests.integration.page_screenshots import PHONE, VIEWS, WIDE, fill, screenshots, url

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]

HOSTILE_KEY = HOSTILE[1].replace(b":", b"") + b":128:0:" + HOSTILE[1] + b"2"
PATHS = {
    "overview": "/?refresh=0",
    "all domains": "/domains",
    "domains found": "/domains?q=host0042",
    "no domain": "/domains?q=none",
    "domain": "/domain?name=host00001.example",
    **{f"hostile domain {at}": f"/domain?name={quote(HOSTILE[at])}" for at in (0, 3, 6, 9)},
    "workers": "/workers",
    "failing": "/failing",
    "log-in": "/login",
    "action": f"/act?do=drop&key={quote(HOSTILE_KEY)}",
    "hostile action": f"/act?do=pause&domain={quote(HOSTILE[0])}",
    "search": "/entry",
    "leased entry": "/entry?key=host00002.example:128:0:0",
    "hostile entry": f"/entry?key={quote(HOSTILE_KEY)}",
    "long entry": f"/entry?key={quote(HOSTILE[9] + b':128:0:' + HOSTILE[9][:80] + b'3')}",
    "entries that begin so": "/entry?key=host0000",
    "hostile entries": f"/entry?key={quote(HOSTILE[0][:4])}",
    "no entry": f"/entry?key={quote(HOSTILE[0] * 20)}",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("page")
    with DaemonProcess(directory, "--http", "127.0.0.1:0", "--cmdlog-sync", "os") as process:
        yield process
        assert "http-page-failed" not in process.said()


@pytest.fixture(scope="module")
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with closing(SyncClient(daemon.address)) as connected:
        fill(connected)
        yield connected


@pytest.fixture(scope="module")
def browser(client: SyncClient) -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def first_pixel(png: bytes) -> tuple[int, int, int]:
    """Return the colour of the upper left corner, which no filter of PNG changes."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        if kind == b"IDAT":
            packed += png[at + 8 : at + 8 + size]
        at += 12 + size
    red, green, blue = zlib.decompress(packed)[1:4]
    return red, green, blue


def test_page_has_its_colours_in_a_browser(
    browser: Browser, daemon: DaemonProcess, tmp_path: Path
) -> None:
    files = {file.stem: file.read_bytes() for file in screenshots(browser, daemon, tmp_path, VIEWS)}
    assert files.keys() == VIEWS.keys()
    assert min(map(len, files.values())) > 20_000
    assert max(first_pixel(files.pop("page-dark"))) < 60
    assert all(min(first_pixel(data)) > 200 for data in files.values())


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_page_fits_a_browser_and_no_name_does_anything_in_it(
    browser: Browser, daemon: DaemonProcess, size: dict[str, Any]
) -> None:
    browser.view(**size)
    for name, path in PATHS.items():
        browser.open(url(daemon, path))
        width = browser.evaluate("document.documentElement.scrollWidth")
        assert browser.evaluate("innerWidth") == size["width"], name
        assert width <= size["width"], name
        active = "script,img,iframe,object,embed,svg :not(path),base,link"
        assert browser.evaluate(f"document.querySelectorAll('{active}').length") == 0, name
        assert browser.evaluate("document.title").endswith("fastjournald"), name
        assert browser.evaluate("location.pathname + location.search") == path, name
        # a browser asks for an icon by itself
        loaded = [each for each in browser.requested() if not each.endswith("/favicon.ico")]
        assert loaded == [url(daemon, path)], name
        happened = {event["method"] for event in browser.events}
        assert not happened & {"Page.javascriptDialogOpening", "Runtime.consoleAPICalled"}, name
