"""Contents of a daemon's page for tests: hostile names, and the figures in the HTML."""

from __future__ import annotations

import http.client
import re
from base64 import b64encode
from contextlib import closing
from html.parser import HTMLParser

from fastjournal.client import SyncClient
from fastjournal.client.core import calls
from fastjournal.errors import RefusedError
from tests.integration.daemon_process import START_S, DaemonProcess

HOSTILE = [
    b"<script>alert(1)</script>",
    b"\"'><img src=x onerror=alert(2)>",
    b"{{ 7 * 7 }}{% raw %}",
    b"</td></table></title><h1>",
    b"javascript&#58;alert(3)",
    b"\xff\xfe not UTF-8 \x80",
    "\u202egnp.tpircs\u2066".encode(),
    b"a\nb\r\t\x1b[31m\0",
    b"%3Cscript%3E&amp;&lt;",
    b"x" * 4000,
    "日本語 ünïcode".encode(),
]
"""Names, keys, reasons and errors of strangers."""

VOID = {"meta", "input", "br", "link"}
SECRET = "value-that-no-page-shows"


def http_address(daemon: DaemonProcess) -> tuple[str, int]:
    """Return where the last start has bound --http, which the log tells."""
    host, port = re.findall(r"event=ready listen=\S+ http=(\S+):(\d+)", daemon.said())[-1]
    return host, int(port)


def get_page(
    daemon: DaemonProcess, path: str, *, host: str = "", token: str = ""
) -> tuple[int, str, dict[str, str]]:
    """Return status, text and header fields of a page."""
    headers = {}
    if host:
        headers["Host"] = host
    if token:
        headers["Authorization"] = "Basic " + b64encode(f"any:{token}".encode()).decode()
    with closing(http.client.HTTPConnection(*http_address(daemon), timeout=START_S)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return response.status, response.read().decode(), fields


class PageReader(HTMLParser):
    """Reads a page strictly: every element is closed, nothing runs, nothing is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text_of: dict[str, str] = {}
        """By id of the element, with that of the elements inside of it."""
        self.links: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of the tables, by id of their section."""
        self._open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert tag not in {"script", "img", "iframe", "object", "embed", "use", "base"}, tag
        assert not any(name.startswith("on") for name in values), values
        assert not values.keys() & {"src", "srcset", "style", "background", "data"}, values
        for name in ("href", "action"):
            if name in values:
                assert re.match(r"/(?!/)", values[name]), values[name]
                self.links.append(values[name])
        if tag not in VOID:
            self._open.append((tag, values.get("id", "")))
        section = self._section()
        if tag == "tr" and section:
            self.tables.setdefault(section, []).append([])
        elif tag == "td" and section:
            self.tables[section][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, (opened, tag)

    def handle_data(self, data: str) -> None:
        for name in {name for _, name in self._open if name}:
            self.text_of[name] = self.text_of.get(name, "") + data
        rows = self.tables.get(self._section())
        if rows and rows[-1] and any(tag == "td" for tag, _ in self._open):
            rows[-1][-1] += data

    def _section(self) -> str:
        return next((name for tag, name in self._open if tag == "section"), "")

    def figure(self, name: str) -> int:
        """Return a number of the page."""
        return int(self.text_of[name].replace(",", ""))


def fill_domains(client: SyncClient, number: int) -> None:
    """Set an entry in each of so many domains."""
    keys = (f"host{at:05}.example:128:0:x".encode() for at in range(number))
    done = client.call_many([calls.set_(key, SECRET, persist=False) for key in keys])
    assert not [one for one in done if isinstance(one, RefusedError)]


def fill_hostile(client: SyncClient) -> None:
    """Let strangers name domains, keys, URIs, errors and reasons; some entries are leased."""
    for at, name in enumerate(HOSTILE):
        domain = name.replace(b":", b"")[:4000]
        key = domain + b":128:0:" + name[: 4080 - len(domain)]
        for suffix in (b"", b"2", b"3"):
            client.set(key + suffix, SECRET, uri=b"http://x/%d" % at + name[:60] + suffix)
        jobs = client.next(domain, count=2)
        first, _ = jobs
        text = name.decode("utf-8", "replace")[:1000]
        assert jobs.token is not None
        client.release(first.key, jobs.token, error=text)
        client.bury(first.key, reason=text)
