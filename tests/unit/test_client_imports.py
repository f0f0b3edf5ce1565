"""Modules that an import of the library loads: every short program pays for its start-up time."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import fastjournal
from fastjournal import Client, Job, SyncClient, SyncJob, errors
from fastjournal.client.core import calls
from fastjournal.client.core.calls.described_methods import ClientMethods
from fastjournal.client.core.leased_job import JobMethods
from fastjournal.protocol import Function


def modules_after(code: str) -> set[str]:
    shown = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", shown], check=True, capture_output=True, text=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "code",
    [
        "import fastjournal",
        "from fastjournal import SyncClient, build_journal_key, RefusedError, Jobs",
        "import fastjournal.client",
        "from fastjournal.client import SyncClient, calls",
    ],
)
def test_import_loads_neither_trio_nor_pyspark(code: str) -> None:
    assert not modules_after(code) & {"trio", "anyio", "asyncio"}
    assert not modules_after(code) & {"pyspark", "pyarrow", "pandas", "rich", "click"}


def test_async_client_is_loaded_when_it_is_named_without_an_event_loop() -> None:
    loaded = modules_after("from fastjournal import Client")
    assert "anyio" in loaded
    assert "trio" not in loaded


def test_import_of_every_public_name_and_of_no_unknown_one() -> None:
    for name in fastjournal.__all__:
        assert getattr(fastjournal, name) is not None
    assert set(fastjournal.__all__) <= set(dir(fastjournal))
    with pytest.raises(AttributeError, match="no attribute 'Queue'"):
        fastjournal.Queue  # noqa: B018 - the access is the test


def test_import_of_every_error_of_the_tree_from_the_top() -> None:
    tree = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.FastjournalError)
    }
    assert tree <= set(fastjournal.__all__)


# --- methods of both clients ----------------------------------------------------------------------
# The methods of both clients: the same ones, with the arguments and words of their calls.


BUILDERS = {
    name.rstrip("_"): getattr(calls, name)
    for name in calls.__all__
    if inspect.isfunction(getattr(calls, name))
}


def test_clients_have_the_same_methods() -> None:
    def public(client: type) -> set[str]:
        return {name for name in dir(client) if not name.startswith("_")}

    sync_only, trio_only = (
        {"call_until", "close", "entries_of", "now_s", "waiting"},
        {"mirror", "start_soon"},
    )
    assert public(SyncClient) - sync_only == public(Client) - trio_only


@pytest.mark.parametrize(
    ("owner", "base"),
    [
        (SyncJob, JobMethods),
        (Job, JobMethods),
        (SyncClient, ClientMethods),
        (Client, ClientMethods),
    ],
)
def test_inherited_docstring_is_the_same_in_both_clients(owner: type, base: type) -> None:
    named = sorted(name for name in vars(base) if not name.startswith("_"))
    assert len(named) > 4
    for name in named:
        assert inspect.getdoc(getattr(owner, name)) == inspect.getdoc(getattr(base, name))
    public = {name for name in dir(owner) if not name.startswith("_")}
    assert [name for name in public if not inspect.getdoc(getattr(owner, name))] == []


def test_function_has_a_method() -> None:
    assert len(set(BUILDERS)) >= len(Function)


def test_daemon_start_loads_no_module_that_few_starts_need() -> None:
    loaded = modules_after("import fastjournald.main")
    assert not loaded & {"re2", "json", "tomllib", "importlib.metadata"}
    assert not loaded & {"h11", "jinja2", "prometheus_client"}
