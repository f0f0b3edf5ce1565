"""The page in a real browser: nothing runs, nothing is loaded, and it has its colours."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import PageReader, get_page
from tests.integration.page_screenshots import CHROMIUM, VIEWS, chromium, fill, screenshots

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium"
)


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


def test_page_in_browser_with_ten_thousand_domains_and_hostile_names(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0", "--cmdlog-sync", "os") as daemon:
        fill(daemon)
        light, phone, dark = [file.read_bytes() for file in screenshots(daemon, tmp_path)]
        assert min(map(len, (light, phone, dark))) > 20_000
        assert min(first_pixel(light)) > 200
        assert max(first_pixel(dark)) < 60
        # the document that the browser made of it: no element came from a name
        document = chromium(daemon, "/?refresh=0", "--dump-dom")
        for text in (document, get_page(daemon, "/?refresh=0")[1]):
            page = PageReader(text.replace("<!DOCTYPE html>", ""))
            assert page.figure("domains") == 10_011
            assert len(page.tables["buried-table"][1:]) == 11
        assert "http-page-failed" not in daemon.said()


def test_page_screenshots_of_the_documentation_are_small() -> None:
    for name in VIEWS:
        assert 10_000 < (DOCS / f"{name}.png").stat().st_size < 200_000
