"""Settings of all tests: seeded randomness, no deadlines, fork servers, groups of Spark tests."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from fastjournal import _native
from tests.integration.programs import close_fork_servers, open_fork_servers
from tests.memory_files import IN_MEMORY, copy_directory, memory_directory
from tests.property.packer import ALONE, WITH_WORKER, packing
from tests.spark.java_machine import JavaMachine
from tests.stale_bytecode import bytecode_written_once
from tests.watchdog import pytest_timeout_set_timer  # noqa: F401 - a hook
from tests.worker_reports import leave_out_idle_reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A test run says the same thing twice. HYPOTHESIS_PROFILE=explore looks further instead.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", parent=settings.get_profile("repeatable"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell lets what it starts in the background ignore SIGINT and SIGQUIT, and so would the programs
# under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# As does nohup with SIGHUP.
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# Programs are started hundreds of times, and workers load the same tests: let Python keep bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

TESTS = f"{Path(__file__).parent}{os.sep}"

IN_MEMORY_AND_ON_DISK = pytest.StashKey[tuple[Path, Path, int]]()
"""Directory of a test in memory, its copy if the test fails, and tests that had failed before."""

GARBAGE_OBJECTS = 10_000
"""New objects after which the garbage collector looks at them; it is 700 without this."""

FIRST_GROUP = {"test_spark_views", "test_nightly_s3"}
"""Modules that take about half of the time of all Spark tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Let tests fork the programs that they start, and workers send few reports."""
    open_fork_servers()
    leave_out_idle_reports(config)


def pytest_unconfigure() -> None:
    """End the fork servers behind all tests, and free modules that were kept from collection."""
    close_fork_servers()
    gc.unfreeze()


def tier_of(item: pytest.Item) -> str:
    """Return the directory of tests that an item is in; text, for each of 10,000 items is asked."""
    path = str(item.path)
    return path[len(TESTS) :].partition(os.sep)[0] if path.startswith(TESTS) else ""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the Spark tests in two workers, so in two Java machines."""
    if tier_of(item) == "spark":
        item.add_marker(pytest.mark.spark)
    if item.get_closest_marker("spark") is not None:
        first = item.path.stem in FIRST_GROUP
        item.add_marker(pytest.mark.xdist_group("spark-1" if first else "spark-2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by turns of tiers, Spark tests first; those that lend the Java machine last of them."""
    from tests.work_units import tier_turns

    turns = dict(zip(items, tier_turns(map(tier_of, items)), strict=True))
    for item in items:
        if item.get_closest_marker("spark") is not None:
            turns[item] = -1 if "spark" not in item.fixturenames else -2
    items.sort(key=turns.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: all that is made stays."""
    gc.disable()
    try:
        with bytecode_written_once():
            return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def java_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaMachine]:
    machine = JavaMachine(tmp_path_factory.mktemp("spark"))
    yield machine
    machine.close()


@pytest.fixture
def spark(java_machine: JavaMachine) -> Iterator[SparkSession]:
    """Spark session that is shared by the tests of this process, until the machine is lent."""
    yield java_machine.session()
    sys.stderr.write(java_machine.said())


def pytest_collection_finish() -> None:
    """Keep modules and thousands of tests, which stay, out of each garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])


@pytest.fixture(scope="session")
def directory_names() -> Counter[str]:
    """Return how many directories of tests of each name were made."""
    return Counter()


@pytest.fixture(scope="session")
def files_in_memory() -> Iterator[Path | None]:
    """Directory in memory; None on a machine with little of it."""
    with memory_directory() as directory:
        yield directory


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    directory_names: Counter[str],
    files_in_memory: Path | None,
) -> Path:
    """Return an empty directory of the name that pytest gives it, for some tiers in memory.

    Pytest lists all directories of the run for each new one, and renews a symbolic link to it. A
    directory in memory is deleted behind the test; if the test failed, a copy is where pytest would
    have made it.
    """
    stem = re.sub(r"\W", "_", request.node.name)[:30]
    name = f"{stem}{directory_names[stem]}"
    directory_names[stem] += 1
    on_disk = tmp_path_factory.getbasetemp() / name
    in_memory = files_in_memory if tier_of(request.node) in IN_MEMORY else None
    path = on_disk if in_memory is None else in_memory / name
    path.mkdir(0o700)
    if in_memory is not None:
        request.node.stash[IN_MEMORY_AND_ON_DISK] = path, on_disk, request.session.testsfailed
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Delete the directory in memory, behind all fixtures: some let calls of the system fail."""
    try:
        return (yield)
    finally:
        if directory := item.stash.get(IN_MEMORY_AND_ON_DISK, None):
            path, on_disk, failed = directory
            if item.session.testsfailed > failed:
                copy_directory(path, on_disk)
            shutil.rmtree(path, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return the scheduler of `make test`."""
    from tests.work_units import WorkUnits

    return WorkUnits(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(params=["poller", "tasks"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one task serve all plain connections of servers in this process, then a task each."""
    monkeypatch.setattr("fastjournald.net.connections.POLLS", request.param == "poller")


@pytest.fixture(scope="module", params=["native", "pure"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Native leaves in this process, then the functions in Python: whether it is the former.

    ``pytestmark = pytest.mark.usefixtures("native")`` runs all tests of a module so. A program of a
    test follows the variable FASTJOURNAL_NATIVE.
    """
    if request.param == "native" and _native.leaves is None:
        pytest.skip(f"native leaves: {_native.reason}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(_native, "leaves", None)
            patch.setattr(_native, "rounds", None)
        yield request.param == "native"


@pytest.fixture(scope="module", params=[ALONE, WITH_WORKER])
def both_forms(request: pytest.FixtureRequest) -> Iterator[str]:
    """Recovery alone, and with a worker that packs segments."""
    with packing() if request.param == WITH_WORKER else nullcontext():
        yield request.param
