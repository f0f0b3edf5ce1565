"""Headless Chromium, driven over a pipe (DevTools protocol): one browser for many pages."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

from tests.integration.daemon_process import START_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A browser with one page, of which a test asks what it made of the HTML."""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = (
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", f"--user-data-dir={self._profile.name}"),
            *("--remote-debugging-pipe", "about:blank"),
        )
        # it reads commands from descriptor 3 and writes to 4
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *arguments],
            pass_fds=(theirs_in, theirs_out),
            # files beside the profile, too
            env=os.environ | {"TMPDIR": self._profile.name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._serial = 0
        self._received = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        """Events of the page since it was opened."""
        try:
            self._attach()
        except BaseException:  # whatever it is, the browser must end
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        try:
            self._process.wait(START_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            self._profile.cleanup()

    def view(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Give the page a size; a phone has finer pixels, and honours the viewport of a page."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def view_print(self, width: int) -> None:
        """Give the page the style and the width of a sheet of paper, in CSS pixels."""
        self.view(width, 1000)
        self._ask("Emulation.setEmulatedMedia", media="print")

    def pdf(self, file: Path, *, inches: tuple[float, float], margin_inches: float) -> None:
        """Print the page to a PDF, on paper of this width and height."""
        width, height = inches
        margins = dict.fromkeys(
            (f"margin{side}" for side in ("Top", "Bottom", "Left", "Right")), margin_inches
        )
        paper = {"paperWidth": width, "paperHeight": height, **margins}
        file.write_bytes(b64decode(self._ask("Page.printToPDF", **paper)["data"]))

    def open(self, url: str) -> None:
        """Open a page, and return when it is loaded."""
        del self.events[:]
        error = self._ask("Page.navigate", url=url).get("errorText")
        assert not error, error
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requested(self) -> list[str]:
        """Return what the page made the browser load, itself included."""
        name = "Network.requestWillBeSent"
        sent = [event["params"] for event in self.events if event["method"] == name]
        return [params["request"]["url"] for params in sent]

    def complaints(self) -> list[dict[str, Any]]:
        """Return the errors, warnings and blocked contents that the browser told of."""
        names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event["method"] in names]

    def screenshot(self, file: Path, *, height: int | None = None) -> None:
        """Write what is to be seen, or the page down to a height in CSS pixels."""
        area: dict[str, Any] = {}
        if height is not None:
            width = self.evaluate("document.documentElement.clientWidth")
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            area = {"clip": clip, "captureBeyondViewport": True}
        file.write_bytes(b64decode(self._ask("Page.captureScreenshot", **area)["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._serial += 1
        message = {"id": self._serial, "method": method, "params": params, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._serial:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        """Return the next message; one without an identifier is an event."""
        deadline = time.monotonic() + 3 * START_S
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._in], [], [], deadline - time.monotonic())
            assert readable, "the browser is silent"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
