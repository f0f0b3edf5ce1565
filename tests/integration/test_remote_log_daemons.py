"""Daemons with a remote log: restart, lost directory, standby, takeover, fencing, adoption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.protocol.constants import Function
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request
from tests.integration.s3_servers import BUCKET, s3_server
from tests.integration.worker_process import wait_until

TAKEOVER_S = 4
"""A primary that a loaded machine leaves without a processor for less than this stays one."""
OPTIONS = ("--takeover-after", str(TAKEOVER_S), "--remote-poll", "50")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


STOPPED_IN_REPLAY = """
import os, signal
from fastjournald import main

replay = main.recover_engine

def stopped(*given, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return replay(*given, **options)

main.recover_engine = stopped
main.main()
"""
"""The daemon, with a SIGTERM during the replay of its log."""


class Nodes:
    """Nodes of one remote log, on this machine."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._stack = ExitStack()

    def node(self, name: str, *options: str, command: Sequence[str] = ()) -> DaemonProcess:
        """Return a node, which is not started yet; a second one of a name has its directory."""
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        own = ("--remote-log", self._url, "--remote-node", name, *OPTIONS, *options)
        daemon = DaemonProcess(directory, *own, command=command)
        self._stack.callback(daemon.__exit__)
        return daemon

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def nodes(tmp_path: Path, url: str) -> Iterator[Nodes]:
    made = Nodes(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def file_nodes(tmp_path: Path, file_url: str) -> Iterator[Nodes]:
    made = Nodes(tmp_path, file_url)
    yield made
    made.close()


def put(daemon: DaemonProcess, *names: str) -> None:
    with SyncClient(daemon.address) as client:
        for name in names:
            client.set(f"key/{name}", name)


def keys(daemon: DaemonProcess) -> list[str]:
    with SyncClient(daemon.address) as client:
        return [entry.key.decode().removeprefix("key/") for entry in client.range()]


def standby(daemon: DaemonProcess, of: str) -> None:
    """Return once a node says that it is a standby of another one."""
    told = f"standby of {of}, "
    wait_until(lambda: told in daemon.said() or "event=failed" in daemon.said())
    assert told in daemon.said(), daemon.said()


def ready(daemon: DaemonProcess) -> None:
    """Return once a standby serves."""
    wait_until(lambda: daemon.is_ready)
    daemon.addresses = (daemon.directory / "ready").read_text().split()


def begun(nodes: Nodes, tmp_path: Path, url: str, *options: str) -> DaemonProcess:
    """Return a primary that began with an empty remote log."""
    done = Cli(tmp_path, None)("remote", "create", url)
    assert done.returncode == 0, done.stderr
    first = nodes.node("first", *options)
    first.start()
    return first


def test_primary_that_was_killed_takes_over_at_once_in_its_directory(
    tmp_path: Path, nodes: Nodes, url: str
) -> None:
    first = begun(nodes, tmp_path, url, "--takeover-after", "3600")
    put(first, "a", "b")
    first.kill()
    first.start()
    assert keys(first) == ["a", "b"]
    put(first, "c")
    assert first.stop() == 0
    first.start()
    assert keys(first) == ["a", "b", "c"]


def test_lost_directory_comes_back_from_the_store(tmp_path: Path, nodes: Nodes, url: str) -> None:
    first = begun(nodes, tmp_path, url)
    put(first, *"abc")
    first.kill()
    shutil.rmtree(first.log_path)

    first.start()

    assert keys(first) == ["a", "b", "c"]


def test_standby_takes_over_when_the_primary_was_killed(
    tmp_path: Path, nodes: Nodes, url: str
) -> None:
    first, second = begun(nodes, tmp_path, url), nodes.node("second")
    put(first, "a")
    second.launch()
    standby(second, "first")
    put(first, "b")

    first.kill()
    killed = time.monotonic()
    ready(second)

    assert time.monotonic() - killed >= TAKEOVER_S / 3, "it may have beaten a beat ago"
    assert keys(second) == ["a", "b"]
    put(second, "c")
    first.launch()
    standby(first, "second")
    assert second.stop() == 0
    ready(first)
    assert keys(first) == ["a", "b", "c"]


def test_standby_takes_over_at_once_when_the_primary_ends_in_good_order(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    long = ("--takeover-after", "3600")
    first = begun(file_nodes, tmp_path, file_url, *long)
    second = file_nodes.node("second", *long)
    put(first, "a")
    second.launch()
    standby(second, "first")

    assert first.stop() == 0
    ready(second)

    assert keys(second) == ["a"]


def test_signal_during_the_replay_of_a_takeover_lets_another_node_take_over_at_once(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    long = ("--takeover-after", "3600")
    first = begun(file_nodes, tmp_path, file_url, *long)
    put(first, "a")
    second = file_nodes.node("second", *long)
    second.launch()
    standby(second, "first")
    first.kill()
    stopped = file_nodes.node("first", *long, command=(sys.executable, "-c", STOPPED_IN_REPLAY))

    stopped.launch()

    assert stopped.wait() == 0
    assert "event=taken-over" in stopped.said()
    assert "event=ready" not in stopped.said().rpartition("event=taken-over")[2]
    ready(second)
    assert keys(second) == ["a"]


def test_signal_during_the_replay_leaves_no_acknowledged_change_behind_with_async(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    options = ("--remote-ack", "async", "--takeover-after", "3600")
    first = begun(file_nodes, tmp_path, file_url, *options)
    checkpointed(tmp_path, 1)
    for name in "abcd":
        put(first, name)
        wait_until(lambda: stored_bytes(tmp_path, 1) >= logged_bytes(first))
    first.kill()
    lose_chunks(tmp_path / "store", 1, 2)
    stopped = file_nodes.node("first", *options, command=(sys.executable, "-c", STOPPED_IN_REPLAY))

    stopped.launch()

    assert stopped.wait() == 0
    second = file_nodes.node("second", *options)
    second.start()
    assert keys(second) == ["a", "b", "c", "d"]


def test_primary_that_was_frozen_is_fenced_and_answers_nothing(
    tmp_path: Path, nodes: Nodes, url: str
) -> None:
    first, second = begun(nodes, tmp_path, url), nodes.node("second")
    second.launch()
    with RawClient(first.address) as client:
        assert client.ask(set_request(b"key/a")).code == ""
        standby(second, "first")
        os.kill(first.pid, signal.SIGSTOP)
        # they lie in its socket when it wakes up
        client.send(build(Function.GET, b"key/a"), set_request(b"key/c"))
        ready(second)
        put(second, "b")
        os.kill(first.pid, signal.SIGCONT)
        assert client.rest() == []
    assert first.wait() == 76
    assert "another node has taken over" in first.said()
    assert keys(second) == ["a", "b"]


def test_directory_that_was_set_back_becomes_what_the_store_says(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url)
    put(first, "a")
    first.kill()
    shutil.copytree(first.log_path, tmp_path / "old")
    first.start()
    put(first, "b")
    first.kill()
    shutil.rmtree(first.log_path)
    shutil.copytree(tmp_path / "old", first.log_path)

    first.start()

    assert keys(first) == ["a", "b"]


def test_directory_with_a_log_is_adopted_by_an_empty_prefix(
    tmp_path: Path, nodes: Nodes, url: str
) -> None:
    first, second = nodes.node("first"), nodes.node("second")
    with DaemonProcess(first.directory) as before:
        put(before, *"abc")
    second.launch()
    wait_until(lambda: "waits for a remote log" in second.said())

    first.start()

    assert keys(first) == ["a", "b", "c"]
    put(first, "d")
    standby(second, "first")
    first.kill()
    ready(second)
    assert keys(second) == ["a", "b", "c", "d"]


def test_log_of_a_node_is_refused_by_another_prefix_and_without_the_option(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url)
    put(first, "a")
    first.stop()
    with DaemonProcess(tmp_path / "first", "--remote-log", file_url) as again:
        assert keys(again) == ["a"]

    alone = DaemonProcess(tmp_path / "first")
    alone.launch()
    assert alone.wait() == 64
    assert "the log belongs to a remote log, and --remote-log is missing" in alone.said()

    moved = DaemonProcess(tmp_path / "first", "--remote-log", f"file://{tmp_path}/other")
    moved.launch()
    assert moved.wait() == 74
    assert "the prefix does not hold the log" in moved.said()

    assert Cli(tmp_path, None)("remote", "create", f"file://{tmp_path}/other").returncode == 0
    moved.launch()
    assert moved.wait() == 65
    assert "it belongs to the log" in moved.said()

    (tmp_path / "third").mkdir()
    with DaemonProcess(tmp_path / "third") as other:
        put(other, "x")
    foreign = DaemonProcess(tmp_path / "third", "--remote-log", file_url)
    foreign.launch()
    assert foreign.wait() == 65
    assert "the directory has a log of its own" in foreign.said()

    repairing = DaemonProcess(tmp_path / "first", "--remote-log", file_url, "--repair")
    repairing.launch()
    assert repairing.wait() == 64
    assert "--repair with --remote-log" in repairing.said()


def test_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    with s3_server("overwrites"):
        daemon = DaemonProcess(tmp_path, "--remote-log", f"s3://{BUCKET}/log")
        daemon.launch()
        assert daemon.wait() == 64
    assert "does not enforce create-only writes" in daemon.said()


def test_prefix_whose_format_was_deleted_is_refused(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url)
    first.stop()
    (tmp_path / "store" / "format.json").unlink()
    first.launch()
    assert first.wait() == 74

    empty = file_nodes.node("empty")
    empty.launch()
    assert empty.wait() == 65
    assert "somebody deleted parts of a remote log" in empty.said()


def test_damaged_chunk_ends_a_node_with_its_name(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url)
    put(first, "a")
    first.stop()
    chunk = sorted((tmp_path / "store" / "log" / "0000000001").iterdir())[1]
    chunk.write_bytes(chunk.read_bytes()[:-1])

    first.launch()

    assert first.wait() == 74
    assert chunk.name in first.said()


def answer_of(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_standby_shows_its_role_and_ends_by_sigterm(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    begun(file_nodes, tmp_path, file_url)
    second = file_nodes.node("second", "--http", "127.0.0.1:0")
    second.launch()
    standby(second, "first")
    wait_until(lambda: "event=standby-http" in second.said())
    address = second.said().partition("http=")[2].split()[0]

    assert answer_of(address, "/healthz") == (200, "ok: standby of first, epoch 1\n")
    assert answer_of(address, "/readyz") == (503, "standby of first, epoch 1\n")
    status, metrics = answer_of(address, "/metrics")
    assert status == 200
    assert 'fastjournal_remote_role{role="standby"} 1.0' in metrics
    assert "fastjournal_remote_epoch 1.0" in metrics
    assert not second.is_ready
    assert second.stop() == 0


def test_standby_keeps_what_a_newer_checkpoint_has_and_no_more(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    small = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50")
    first = begun(file_nodes, tmp_path, file_url, *small)
    second = file_nodes.node("second", *small)
    second.launch()
    standby(second, "first")
    fill(first, range(150), "old")
    fill(first, range(150), "new")
    wait_until(lambda: not (first.log_path / "000000001.log").exists())

    done = Cli(tmp_path, first.address)("remote", "checkpoint", "--json")

    assert done.returncode == 0, done.stderr
    taken = tuple(map(int, json.loads(done.stdout)["checkpoint"].split("-")))

    def same() -> bool:
        # so small a log is due for checkpoints of its own as well: the newest one counts
        newest = max((tmp_path / "store" / "checkpoints").glob("*.json"))
        assert tuple(map(int, newest.stem.split("-"))) >= taken
        listed = {
            int(each.partition("-")[0]): int(each.rpartition("-")[2].partition(".")[0])
            for each in json.loads(newest.read_bytes())["segments"]
        }
        assert 1 not in listed
        sizes = {int(name[:-4]): file.st_size for name, file in second.segments().items()}
        return {number: size for number, size in sizes.items() if number <= max(listed)} == listed

    wait_until(same)
    expected = entries(first)
    first.kill()
    ready(second)
    assert entries(second) == expected


# --- segments and surplus -----------------------------------------------------------------------


def test_taker_reads_segments_that_records_say_were_rewritten_or_removed(
    tmp_path: Path, file_nodes: Nodes
) -> None:
    """The checkpoint has them as they were; compaction has changed them since (S2)."""
    small = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50")
    first, second = (file_nodes.node(name, *small) for name in ("first", "second"))
    with DaemonProcess(first.directory, *small, "--cmdlog-clean-int", "0") as before:
        fill(before, range(150), "old")
    adopted = first.segments()
    first.start()
    checkpointed(tmp_path, 1)
    fill(first, range(60), "new")
    fill(first, [number for number in range(60, 150) if number % 4], "new")

    def compacted() -> bool:
        now = first.segments()
        inodes = {
            name: (old.st_ino, now[name].st_ino) for name, old in adopted.items() if name in now
        }
        return len(inodes) < len(adopted) and any(old != new for old, new in inodes.values())

    wait_until(compacted)
    put(first, "last")
    expected = entries(first)
    first.kill()

    second.start()

    assert entries(second) == expected
    second.kill()
    first.start()
    assert entries(first) == expected


def fill(daemon: DaemonProcess, numbers: Iterable[int], value: str) -> None:
    with SyncClient(daemon.address) as client:
        for number in numbers:
            client.set(f"key/{number}", value + "v" * 150, overwrite=True)


def entries(daemon: DaemonProcess) -> dict[bytes, object]:
    with SyncClient(daemon.address) as client:
        return {entry.key: entry.value for entry in client.range()}


def checkpointed(directory: Path, epoch: int) -> None:
    """Return once an epoch has its first checkpoint: no other one comes for an hour."""
    checkpoints = directory / "store" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob(f"{epoch:010d}-*")))


def lose_chunks(store: Path, epoch: int, names: int) -> None:
    """Remove the last chunks of an epoch with bytes, and all behind the first of these."""
    chunks = sorted((store / "log" / f"{epoch:010d}").iterdir())
    with_bytes = [number for number, path in enumerate(chunks) if path.stat().st_size > 70]
    for path in chunks[with_bytes[-names] :]:
        path.unlink()


def test_async_node_that_wrote_last_stores_what_the_store_has_not(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url, "--remote-ack", "async")
    checkpointed(tmp_path, 1)
    for name in "abcd":
        put(first, name)
        wait_until(lambda: stored_bytes(tmp_path, 1) >= logged_bytes(first))
    first.kill()
    lose_chunks(tmp_path / "store", 1, 2)

    first.start()

    assert keys(first) == ["a", "b", "c", "d"]
    first.kill()
    shutil.rmtree(first.log_path)
    first.start()
    assert keys(first) == ["a", "b", "c", "d"]


def test_async_node_keeps_what_diverged_when_another_node_has_taken_over(
    tmp_path: Path, file_nodes: Nodes, file_url: str
) -> None:
    first = begun(file_nodes, tmp_path, file_url, "--remote-ack", "async")
    checkpointed(tmp_path, 1)
    for name in "abcd":
        put(first, name)
        wait_until(lambda: stored_bytes(tmp_path, 1) >= logged_bytes(first))
    first.kill()
    lose_chunks(tmp_path / "store", 1, 2)
    second = file_nodes.node("second", "--remote-ack", "async")
    second.start()
    assert keys(second) == ["a", "b"]
    put(second, "e")

    first.launch()
    standby(first, "second")

    (kept,) = (first.directory / "log.diverged-1").iterdir()
    line = next(line for line in first.said().splitlines() if "event=surplus" in line)
    assert f"kept={kept}" in line
    assert "segment=1 " in line
    assert "records=2 " in line
    (tmp_path / "looked at" / "log").mkdir(parents=True)
    shutil.copy(kept, tmp_path / "looked at" / "log")
    with DaemonProcess(tmp_path / "looked at") as lost:
        assert keys(lost) == ["a", "b", "c", "d"]
    assert second.stop() == 0
    ready(first)
    assert keys(first) == ["a", "b", "e"]
    first.kill()
    first.start()
    assert len(list((first.directory / "log.diverged-1").iterdir())) == 1


@pytest.mark.parametrize("other", [False, True], ids=["at once", "after another node"])
def test_durable_node_cuts_what_the_store_has_not_and_keeps_it_aside(
    tmp_path: Path, file_nodes: Nodes, file_url: str, other: bool
) -> None:
    first = begun(file_nodes, tmp_path, file_url)
    checkpointed(tmp_path, 1)
    for name in "abc":
        put(first, name)
    first.kill()
    lose_chunks(tmp_path / "store", 1, 1)
    if other:
        second = file_nodes.node("second")
        second.start()
        put(second, "e")
        first.launch()
        standby(first, "second")
        assert second.stop() == 0
        ready(first)
    else:
        first.start()

    assert keys(first) == (["a", "b", "e"] if other else ["a", "b"])
    (kept,) = first.log_path.glob("*.surplus")
    assert b"key/c" in kept.read_bytes()


def stored_bytes(directory: Path, epoch: int) -> int:
    chunks = (directory / "store" / "log" / f"{epoch:010d}").iterdir()
    return sum(path.stat().st_size - 70 for path in chunks)


def logged_bytes(daemon: DaemonProcess) -> int:
    return sum(file.st_size for file in daemon.segments().values())
