"""Object stores of the remote log: one contract, and stores that are refused at a start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fastjournal.disk import OsDisk
from fastjournal.errors import (
    FencedError,
    LogFailedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.remote import file_store
from fastjournal.remote.objects import (
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    chunk_name,
    decode_chunk,
    encode_chunk,
)
from fastjournal.remote.open_store import open_store, require_promises
from fastjournal.remote.store import Create, Get, Listed, ObjectStore, repeating, run
from fastjournal.remote.writer import ChunkWriter
from fastjournal.testing.object_store import CruelStore, MemoryStore
from tests.integration.fault_proxy import Fate, FaultProxy, Faults
from tests.integration.programs import installed
from tests.integration.s3_servers import BUCKET, s3_server
from tests.integration.worker_process import wait_until

NONCE = bytes(16)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "file":
        return open_store(f"file://{tmp_path}/a%20store")
    request.getfixturevalue("server")
    return open_store(f"s3://{BUCKET}/{tmp_path.name}")


def test_store_creates_an_object_once(store: ObjectStore) -> None:
    assert store.create("log/1/2", b"first")
    assert not store.create("log/1/2", b"second")

    assert store.get("log/1/2") == b"first"
    assert store.get("log/1/3") is None


def test_store_creates_one_of_many_at_once(store: ObjectStore) -> None:
    contents = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda content: store.create("once", content), contents))

    assert created.count(True) == 1
    assert store.get("once") == contents[created.index(True)]


def test_store_reads_a_part_and_is_short_at_the_end(store: ObjectStore) -> None:
    store.create("object", b"0123456789")

    assert store.get_range("object", 2, 3) == b"234"
    assert store.get_range("object", 8, 5) == b"89"
    assert store.get_range("other", 0, 5) is None


def test_store_lists_a_folder_behind_a_name_in_order(store: ObjectStore) -> None:
    for name in ("log/2/1", "log/1/3", "log/1/1", "log/1/2", "logs/1", "live/1"):
        store.create(name, name.encode())

    assert [listed.name for listed in store.list("log")] == [
        *("log/1/1", "log/1/2", "log/1/3", "log/2/1"),
    ]
    assert store.list("log/1", "log/1/2") == [("log/1/3", 7)]
    assert [listed.name for listed in store.list("log", "log/1/1", 2)] == ["log/1/2", "log/1/3"]
    assert [listed.name for listed in store.list("log", "log/1/2x")] == ["log/1/3", "log/2/1"]
    assert store.list("none") == []


def test_store_overwrites_copies_and_deletes(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"s" * 3_000_000)
    store.overwrite("a", b"old")
    store.overwrite("a", None, str(tmp_path / "segment"))

    assert store.get("a") == b"s" * 3_000_000
    assert store.copy("a", "b/c")
    assert store.get("b/c") == b"s" * 3_000_000
    assert not store.copy("missing", "b/d")
    store.delete("a")
    store.delete("a")
    assert store.get("a") is None


def test_store_that_keeps_its_promises_passes_and_is_left_empty(store: ObjectStore) -> None:
    require_promises(store, NONCE)

    assert store.list("probe") == []


def test_store_lists_more_than_a_page(server: str) -> None:
    store = open_store(f"s3://{BUCKET}/pages", timeout_seconds=60)

    require_promises(store, NONCE, names=1001)


def refused(store: ObjectStore, message: str) -> None:
    with pytest.raises(StoreRefusedError, match=message):
        require_promises(store, NONCE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CruelStore(overwrites=True), "does not enforce create-only writes"),
        (lambda: CruelStore(lists_late=True), "does not show what was just created"),
    ],
)
def test_store_that_breaks_a_promise_is_refused(
    make: Callable[[], CruelStore], message: str
) -> None:
    refused(make(), message)


class Ghost(MemoryStore):
    """Says that an object exists where there is none."""

    def create(self, name: str, data: bytes) -> bool:
        return False


class Paged(MemoryStore):
    """Gives three names as if that were all."""

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        return super().list(folder, after, limit)[:3]


class Undeleting(MemoryStore):
    def delete(self, name: str) -> None:
        return


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Ghost, "nobody has created it"),
        (Paged, "does not show what was just created"),
        (Undeleting, "still lists an object that was deleted"),
    ],
)
def test_store_with_another_fault_is_refused(broken: type[MemoryStore], message: str) -> None:
    refused(broken(), message)


def test_s3_server_that_overwrites_on_create_is_refused() -> None:
    with s3_server("overwrites"):
        refused(open_store(f"s3://{BUCKET}/log"), "does not enforce create-only writes")


def test_s3_server_that_refuses_the_credentials_is_a_named_error() -> None:
    with s3_server("forbids"):
        refused(open_store(f"s3://{BUCKET}/log"), "refuses these credentials")


def test_s3_server_that_fails_after_the_work_passes() -> None:
    with s3_server("fails late"):
        require_promises(open_store(f"s3://{BUCKET}/log"), NONCE)


def test_missing_bucket_is_a_named_error(server: str) -> None:
    store = open_store("s3://another-bucket/log")

    with pytest.raises(StoreRefusedError, match="there is no such bucket"):
        store.list("log")
    with pytest.raises(StoreRefusedError, match="there is no such bucket"):
        store.create("log/1", b"")
    assert store.get("log/1") is None


@pytest.mark.parametrize(
    ("bucket", "endpoint", "code", "sentence"),
    [
        (BUCKET, None, 0, ""),
        ("nowhere", None, 64, "--remote-log: epochs: there is no such bucket"),
        (BUCKET, "http://127.0.0.1:9", 0, "warning: --remote-log: epochs: the request failed"),
    ],
)
def test_check_of_the_configuration_asks_the_store(
    server: str, tmp_path: Path, bucket: str, endpoint: str | None, code: int, sentence: str
) -> None:
    options = ["--cmdlog-path", str(tmp_path), "--listen", f"unix:{tmp_path}/socket"]
    done = subprocess.run(
        [installed("fastjournald"), *options, "--check-config", "--remote-log", f"s3://{bucket}/x"],
        env=os.environ | {"AWS_ENDPOINT_URL": endpoint or server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "" if code else "ok\n")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == bool(sentence)


def test_store_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        pass
    for name, value in (
        ("AWS_ENDPOINT_URL", address),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/log", timeout_seconds=1, repeats=0)

    with pytest.raises(StoreUnavailableError, match="the request failed") as failed:
        store.create("log/1", b"")
    assert failed.value.maybe_done


@pytest.mark.parametrize("url", ["log", "file://host/x", "http://host/x", "s3:///x", "file:///"])
def test_url_of_no_store_is_a_named_error(url: str) -> None:
    with pytest.raises(StoreRefusedError, match="is no URL of an object store"):
        open_store(url)


def test_file_store_refuses_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"22 21 0:3 / {tmp_path}/a\\040share rw,nosuid shared:4 - nfs4 host:/share rw\n"
    )
    monkeypatch.setattr(file_store, "_MOUNTS", str(mounts))

    open_store(f"file://{tmp_path}/local")
    with pytest.raises(StoreRefusedError, match="type nfs4 may be of a network"):
        open_store(f"file://{tmp_path}/a%20share/log")


def test_file_store_on_a_failing_disk_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailableError, match="cannot create directory"):
        open_store(f"file://{tmp_path}/file/log")


def test_file_store_syncs_what_it_creates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    store = open_store(f"file://{tmp_path}/store")
    store.create("log/0", b"")

    def recorded(name: str) -> Callable[..., object]:
        usual = getattr(OsDisk, name)

        def call(self: OsDisk, path: str, *rest: object) -> object:
            calls.append(f"{name} {os.path.basename(os.path.dirname(path))}/")
            return usual(self, path, *rest)

        return call

    for name in ("link", "unlink", "sync_directory"):
        monkeypatch.setattr(OsDisk, name, recorded(name))
    store.create("log/1", b"")

    assert calls == ["link tmp/", "sync_directory store/", "unlink tmp/"]


def test_file_store_syncs_the_name_of_an_object_that_is_being_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has linked it, and its directory is not synced yet."""
    store = open_store(f"file://{tmp_path}")
    store.create("log/1", b"seal")
    os.link(tmp_path / "log/1", tmp_path / "tmp/creator")
    synced: list[str] = []
    monkeypatch.setattr(OsDisk, "sync_directory", lambda _, path: synced.append(path))

    assert store.get("log/1") == b"seal"
    assert synced == [f"{tmp_path}/log"]


def test_file_store_keeps_nothing_of_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    monkeypatch.setattr(OsDisk, "link", fail)

    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.create("log/1", b"")
    assert store.get("log/1") is None


def fail(*_: object) -> None:
    raise LogFailedError("the disk is gone")


def test_import_of_the_library_loads_no_store_library() -> None:
    code = (
        "import sys, fastjournal, fastjournal.remote.open_store\n"
        "assert not {'obstore', 'boto3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class FaultyNetwork(MemoryStore):
    """A right store, of which no create is answered so many times."""

    def __init__(self, unanswered: int, *, late: bool = False) -> None:
        super().__init__()
        self._unanswered = unanswered
        self._late = late

    def create(self, name: str, data: bytes) -> bool:
        self._unanswered -= 1
        if self._unanswered < 0:
            return super().create(name, data)
        if self._late:
            return False  # a repeat of the library is said to have met an object
        raise StoreUnavailableError("the store does not answer")


def test_store_whose_creates_are_not_answered_is_not_refused() -> None:
    with pytest.raises(StoreUnavailableError, match="answers no test of its creates"):
        require_promises(FaultyNetwork(8), NONCE)


def test_store_is_tried_again_before_it_is_refused() -> None:
    require_promises(FaultyNetwork(8, late=True), NONCE)
    with pytest.raises(StoreRefusedError, match="nobody has created it"):
        require_promises(FaultyNetwork(100, late=True), NONCE)


# --- over a network with faults -----------------------------------------------------------------

EVERY_FATE = Faults({fate: 0.06 for fate in Fate if fate is not Fate.PASS}, late_seconds=0.3)


@pytest.fixture
def network(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with FaultProxy(server, seed=3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        yield proxy


def impatient(url: str) -> ObjectStore:
    """Open a store that gives up before a black hole costs the test its patience."""
    return open_store(url, timeout_seconds=0.4)


@pytest.mark.parametrize(
    ("fate", "carried_out"),
    [
        (Fate.DROP, False),
        (Fate.CUT, True),
        (Fate.REFUSE, False),
        (Fate.FAIL, True),
        (Fate.SWALLOW, False),
        (Fate.SILENCE, True),
    ],
)
def test_create_that_meets_a_fault_says_nothing(
    network: FaultProxy, server: str, fate: Fate, carried_out: bool
) -> None:
    url = f"s3://{BUCKET}/{fate.value}"
    store = impatient(url)
    network.faults = Faults({fate: 1.0})

    created = None
    with suppress(StoreUnavailableError):
        # the library's own repeat may meet the object of its first try
        created = store.create("log/1", b"chunk")
    assert not created
    network.faults = Faults()
    assert network.fates[fate] > 0
    patient = open_store(url)
    if carried_out:
        # the work may take longer than the patience of its sender
        wait_until(lambda: patient.get("log/1") == b"chunk")
    else:
        assert patient.get("log/1") is None


def test_create_that_is_late_is_carried_out_when_its_sender_has_given_up(
    network: FaultProxy,
) -> None:
    url = f"s3://{BUCKET}/late"
    store = open_store(url, timeout_seconds=0.4, repeats=0)
    network.faults = Faults({Fate.LATE: 1.0}, late_seconds=0.2)

    with pytest.raises(StoreUnavailableError):
        store.create("log/1", b"late")
    network.faults = Faults()
    patient = open_store(url)
    wait_until(lambda: patient.get("log/1") == b"late")
    assert not patient.create("log/1", b"repeat")


def test_cut_of_the_network_ends_a_request_under_way(network: FaultProxy) -> None:
    store = open_store(f"s3://{BUCKET}/cut", timeout_seconds=60, repeats=0)
    network.faults = Faults({Fate.SWALLOW: 1.0})
    with ThreadPoolExecutor(1) as thread:
        request = thread.submit(store.create, "log/1", b"chunk")
        wait_until(lambda: network.fates[Fate.SWALLOW] > 0)
        network.cut()
        with pytest.raises(StoreUnavailableError):
            request.result()


def test_one_of_two_writers_behind_faulty_networks_creates_each_object(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each repeats until an answer decides; who has created it is told by the bytes (W2)."""
    with FaultProxy(server, 1, EVERY_FATE) as one, FaultProxy(server, 2, EVERY_FATE) as other:
        stores = []
        for proxy in (one, other):
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
            stores.append(repeating(impatient(f"s3://{BUCKET}/two"), lambda *_: None))
        names = [f"log/{number}" for number in range(12)]

        def claim(writer: int) -> list[bool]:
            content = b"%d" % writer
            claimed = []
            for name in names:
                while not (created := stores[writer](Create(name, content))):
                    found = stores[writer](Get(name))
                    if found is not None:
                        created = found == content
                        break
                claimed.append(bool(created))
            return claimed

        with ThreadPoolExecutor(2) as threads:
            mine, theirs = threads.map(claim, (0, 1))
        assert [a != b for a, b in zip(mine, theirs, strict=True)] == [True] * len(names)
        assert sum(one.fates.values()) > one.fates[Fate.PASS]


def test_chunk_writer_behind_a_faulty_network_stores_each_chunk_once_until_it_is_fenced(
    network: FaultProxy, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = repeating(impatient(f"s3://{BUCKET}/chunks"), lambda *_: None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    calm = repeating(open_store(f"s3://{BUCKET}/chunks"), lambda *_: None)
    network.faults = EVERY_FATE
    writer = ChunkWriter(Epoch(1, "log", "node", NONCE, 0), 0, 1)
    contents = [b"", *(b"%d" % number for number in range(20))]
    for number, content in enumerate(contents):
        run(writer.store(1, number, content, number), perform)

    for number, content in enumerate(contents):
        at = ChunkId(1, number)
        data = calm(Get(chunk_name(at)))
        assert isinstance(data, bytes)
        assert decode_chunk(at, data).payload == content
    at = ChunkId(1, len(contents))
    assert calm(Create(chunk_name(at), encode_chunk(Chunk(at, ChunkKind.SEAL, b"2" * 16, 99))))
    with pytest.raises(FencedError):
        run(writer.store(1, 99, b"fenced", 99), perform)


def test_segment_that_takes_longer_than_a_chunk_may_is_stored(
    network: FaultProxy, tmp_path: Path
) -> None:
    store = open_store(f"s3://{BUCKET}/slow", timeout_seconds=0.5, repeats=0)
    segment = tmp_path / "segment"
    segment.write_bytes(bytes(1 << 20))
    network.faults = Faults(delay_seconds=1.0)

    with pytest.raises(StoreUnavailableError):
        store.create("log/1", b"chunk")
    store.overwrite("segments/1", None, str(segment))
    assert store.copy("segments/1", "segments/2")

    network.faults = Faults()
    assert store.get("segments/2") == segment.read_bytes()
