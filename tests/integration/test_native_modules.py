"""Loading of the native leaves: those of other sources or interpreters are refused and said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal import _native
from fastjournal._native import Status
from fastjournal.client import SyncClient
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import get_page
from tests.integration.programs import installed, run_program

ROOT = Path(__file__).resolve().parents[2]
NO_COMPILER = 69
SHOW = (
    "from fastjournal import _native as n; print(n.status, n.leaves is n.rounds is None, n.reason)"
)


def compiled(directory: Path, *options: str) -> Path:
    """Compile the modules into a directory."""
    command = [sys.executable, str(ROOT / "hatch_build.py"), str(directory), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_COMPILER:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return directory


def loaded(switch: str) -> tuple[str, str, str]:
    """Return status, whether there are no modules, and the reason, in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=os.environ | {"FASTJOURNAL_NATIVE": switch},
        capture_output=True,
        text=True,
        check=True,
    )
    status, missing, reason = done.stdout.rstrip("\n").split(" ", 2)
    return status, missing, reason


def test_native_modules_of_this_checkout_are_those_of_its_sources() -> None:
    # else all tests run the functions in Python, and nobody sees it
    assert _native.status is not Status.MISMATCH, f"{_native.reason}: run make venv"
    assert (_native.leaves is None) is (_native.rounds is None) is (_native.status is not Status.ON)
    assert bool(_native.reason) is (_native.status is not Status.ON)


def test_native_modules_are_taken_from_the_directory_that_the_variable_names(
    tmp_path: Path,
) -> None:
    assert loaded(str(compiled(tmp_path))) == (Status.ON, "False", "")


IN_SUBINTERPRETER = """
import importlib.util
from fastjournal import _native
name = "_xxsubinterpreters" if importlib.util.find_spec("_xxsubinterpreters") else "_interpreters"
interpreters = importlib.import_module(name)
for isolation in ({"isolated": False}, {}):
    try:
        each = interpreters.create(**isolation)
    except TypeError:
        each = interpreters.create("legacy")
    interpreters.run_string(each, %r)
"""


def test_native_modules_refuse_subinterpreters() -> None:
    # what they keep, classes say, is that of one interpreter
    shown = subprocess.run(
        [sys.executable, "-c", IN_SUBINTERPRETER % SHOW],
        env={name: value for name, value in os.environ.items() if name != "FASTJOURNAL_NATIVE"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = shown.stdout.splitlines()
    assert [line.split(" ", 2)[:2] for line in lines] == [[Status.MISMATCH, "True"]] * 2
    assert "interpreter" in lines[0]


def test_native_modules_are_off_by_the_variable() -> None:
    assert loaded("0") == (Status.OFF, "True", "FASTJOURNAL_NATIVE=0")


def test_native_modules_of_other_sources_are_refused(tmp_path: Path) -> None:
    compiled(tmp_path, "-UFJ_NATIVE_BUILD", '-DFJ_NATIVE_BUILD="00000000"')
    status, missing, reason = loaded(str(tmp_path))
    assert (status, missing) == (Status.MISMATCH, "True")
    assert reason.startswith(f"{tmp_path}/_leaves.")
    assert "is of another version: fingerprint 00000000, not " in reason


def test_native_modules_that_are_imported_by_name_turn_no_leaf_on() -> None:
    """Callers would take leaves that know no class, and crash."""
    importing = "; import fastjournal._native._leaves, fastjournal._native._rounds; "
    done = subprocess.run(
        [sys.executable, "-c", SHOW + importing + "print(n.leaves is n.rounds is None)"],
        env=os.environ | {_native.SWITCH: "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["off", "True", f"{_native.SWITCH}=0", "True"]


def test_native_modules_of_another_interpreter_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "_leaves.cpython-310-x86_64-linux-gnu.so"
    file.touch()
    assert loaded(str(tmp_path)) == (
        *(Status.MISMATCH, "True"),
        f"{file} is for another interpreter",
    )


def test_native_modules_that_are_no_modules_are_refused(tmp_path: Path) -> None:
    (tmp_path / "_leaves.so").write_bytes(b"\x7fELF")
    status, missing, reason = loaded(str(tmp_path))
    assert (status, missing) == (Status.MISMATCH, "True")
    assert f"{tmp_path}/_leaves.so" in reason


def test_native_modules_that_are_not_there_are_said(tmp_path: Path) -> None:
    assert loaded(str(tmp_path)) == (Status.NOT_BUILT, "True", "not built")


def test_native_modules_of_other_sources_are_said_once_everywhere_and_the_daemon_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = tmp_path / "native"
    compiled(native, "-UFJ_NATIVE_BUILD", '-DFJ_NATIVE_BUILD="00000000"')
    monkeypatch.setenv("FASTJOURNAL_NATIVE", str(native))
    version = run_program([installed("fastjournald"), "--version"], capture_output=True, text=True)
    assert f"native leaves mismatch: {native}/_leaves." in version.stdout
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0") as daemon:
        with SyncClient(daemon.address) as client:
            client.enqueue("mails", "hello")
            assert [job.value for job in client.jobs("mails", wait=None)] == [b"hello"]
            assert client.daemon_stats().native == 0
        assert 'native="mismatch"' in get_page(daemon, "/metrics")[1]
        assert ", native leaves mismatch, " in get_page(daemon, "/")[1]
        lines = [line for line in daemon.said().splitlines() if "native" in line]
        assert len(lines) == 1
        assert "WARNING" in lines[0].upper()
        assert f"event=native-leaves status=mismatch reason='{native}/_leaves." in lines[0]


@pytest.mark.parametrize("switch", ["", "0"])
def test_native_modules_are_said_by_a_daemon_that_has_them_and_by_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    if not switch and _native.leaves is None:
        pytest.skip(_native.reason)
    monkeypatch.setenv("FASTJOURNAL_NATIVE", switch)
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        assert client.daemon_stats().native == int(not switch)
        said = "event=native-leaves status=off reason=FASTJOURNAL_NATIVE=0"
        assert daemon.said().count("native") == bool(switch)
        assert (said in daemon.said()) == bool(switch)


def test_native_fingerprint_changes_with_each_name_and_byte(tmp_path: Path) -> None:
    found = set[str]()
    for name, text in (("a.c", "1"), ("a.c", "2"), ("b.h", "1"), ("b.h", ""), ("c.py", "")):
        (tmp_path / name).write_text(text)
        found.add(_native.fingerprint(tmp_path))
    assert len(found) == 4, "all but that of c.py"
