"""Modules that an import of the library loads: every short program pays for its start-up time."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fastjournal
from fastjournal import errors


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
