"""examples/web: applications of FastAPI and Flask that enqueue, with the daemon in process."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import anyio
import pytest

from fastjournald.testing import FastjournalDaemon
from tests.system.staging import ROOT


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "web" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def post(app: Any, path: str) -> tuple[int, bytes]:
    """Send a POST to an ASGI application."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "scheme": "http",
        "server": ("shop", 80),
        "client": ("shop", 1),
    }
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said[0]["status"], b"".join(message.get("body", b"") for message in said)


def test_fastapi_application_shares_a_client_and_enqueues_an_order_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fastapi")
    module = example("fastapi_jobs")

    async def scenario() -> list[tuple[int, bytes]]:
        async with module.lifespan(module.app):
            return [await post(module.app, f"/orders/{number}") for number in (7, 7, 8)]

    with FastjournalDaemon() as daemon:
        monkeypatch.setattr(module, "new_client", daemon.client)
        assert anyio.run(scenario) == [
            (202, b'{"mail":"new"}'),
            (202, b'{"mail":"replaced"}'),
            (202, b'{"mail":"new"}'),
        ]
        done = [job.decoded(str) for job in daemon.sync_client().jobs("mails")]
        assert sorted(done) == ['{"order":7}', '{"order":8}']


def test_flask_application_shares_a_client_and_enqueues_an_order_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("flask")
    module = example("flask_jobs")
    with FastjournalDaemon() as daemon:
        monkeypatch.setattr(module, "jobs", daemon.sync_client())
        browser = module.app.test_client()
        replies = [browser.post(f"/orders/{number}") for number in (7, 7, 8)]
        assert [reply.json for reply in replies] == [
            {"mail": "new"},
            {"mail": "replaced"},
            {"mail": "new"},
        ]
        assert {reply.status_code for reply in replies} == {202}
        done = [job.decoded(str) for job in daemon.sync_client().jobs("mails")]
        assert sorted(done) == ['{"order":7}', '{"order":8}']
