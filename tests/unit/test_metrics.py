"""The figures of a daemon as Prometheus reads them."""

from __future__ import annotations

import errno
import os
import re
import resource
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from itertools import count
from pathlib import Path
from platform import python_version
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fastjournal import _native
from fastjournal.build_info import build_info
from fastjournal.disk import DiskSpace
from fastjournal.errors import ConfigError
from fastjournal.http_server import HttpResponse
from fastjournal.limits import COUNTED_DOMAINS_MAX, METRICS_DOMAINS_MAX, REPLACED_PAIRS_MAX
from fastjournal.protocol import Flag, Function, Request, ValueType, decode_reply
from fastjournald.config.load import load_config
from fastjournald.engine.context import UNKNOWN, Settings
from fastjournald.engine.handlers.stats import about_domain
from fastjournald.engine.invariants import check_store
from fastjournald.histogram import Histogram
from fastjournald.observability.metrics import Metrics, histogram, remote_metrics
from fastjournald.observability.page_text import shown
from tests.functions import NO_FUNCTIONS
from tests.observed_daemon import START, ObservedDaemon
from tests.property.logged_engine import LoggedEngine
from tests.property.subject import request as ask
from tests.unit.test_checkpoints import RemoteServer

OPERATING = Path(__file__).resolve().parents[2] / "docs/operating.md"
SECOND = 1_000_000


class Subject(ObservedDaemon):
    """A daemon whose metrics are looked at."""

    def figures(self) -> dict[str, float]:
        """Return every sample: ``name{label,...}`` to its value."""
        return samples(trio.run(Metrics(self.server.runtime).text))


def samples(text: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = ",".join(sample.labels[name] for name in sorted(sample.labels))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, "a series stands there twice"
            found[name] = sample.value
    return found


@pytest.fixture
def s() -> Subject:
    return Subject()


def test_requests_are_counted_by_function(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.set(b"a:1:0:y")
    s.ask(Function.NOP)
    figures = s.figures()
    counts = {name: figures[f"fastjournal_requests_total{{{name}}}"] for name in ("set", "nop")}
    assert counts == {"set": 2, "nop": 1}
    assert figures["fastjournal_requests_total{delete}"] == 0


def test_metrics_have_a_series_for_every_function_from_the_start(s: Subject) -> None:
    names = {f"fastjournal_requests_total{{{function.name.lower()}}}" for function in Function}
    figures = s.figures()
    assert names | {"fastjournal_requests_total{unknown}"} == {
        name for name in figures if name.startswith("fastjournal_requests_total")
    }


def test_errors_are_counted_by_code_without_their_sentence(s: Subject) -> None:
    assert s.ask(Function.DELETE, b"a:1:0:x") == "not-found"
    assert s.ask(Function.DELETE, b"a:1:0:x") == "not-found"
    assert s.ask(Function.SET).startswith("bad-key ")
    figures = s.figures()
    errors = {name: v for name, v in figures.items() if "request_errors" in name}
    assert errors == {
        "fastjournal_request_errors_total{not-found,delete}": 2,
        "fastjournal_request_errors_total{bad-key,set}": 1,
    }
    assert figures["fastjournal_requests_total{delete}"] == 2


def test_jobs_replaced_from_another_domain_are_counted_by_pair(s: Subject) -> None:
    instants = count(START)

    def put(key: str) -> None:
        now = next(instants)
        request = Request(Function.SET, 1, 0, now, key.encode(), b"uri", 1, b"v")
        assert s.engine.handle("session", request, now)

    for key in ("mails:1:0:x", "mails:1:0:y", "plain", "mails:1:0:z"):
        put(key)
    assert not s.engine.counters.replaced
    for key in ("search:1:0:x", "mails:1:0:a", "search:1:0:b"):
        put(key)
    found = {name: value for name, value in s.figures().items() if "replaced" in name}
    assert found == {
        "fastjournal_replaced_total{mails,search}": 2,
        "fastjournal_replaced_total{search,mails}": 1,
    }
    for number in range(REPLACED_PAIRS_MAX):
        put(f"d{number}:1:0:x")
    found = {name: value for name, value in s.figures().items() if "replaced" in name}
    assert sum(found.values()) == REPLACED_PAIRS_MAX + 3
    assert len(found) == REPLACED_PAIRS_MAX + 1
    assert found["fastjournal_replaced_total{,}"] == 2


def test_functions_without_a_name_share_one_series(s: Subject) -> None:
    for function in NO_FUNCTIONS:
        assert s.ask(function) == "unknown-function"
    for function in (Function.SNAPSHOT, Function.REMOTE):
        assert s.ask(function) == "unknown-function"
    figures = s.figures()
    asked = len(NO_FUNCTIONS)
    assert figures["fastjournal_requests_total{unknown}"] == asked
    assert figures["fastjournal_request_errors_total{unknown-function,unknown}"] == asked
    assert figures["fastjournal_requests_total{snapshot}"] == 1
    assert figures["fastjournal_requests_total{remote}"] == 1
    assert set(s.engine.counters.errors) == {
        (UNKNOWN, "unknown-function"),
        (Function.SNAPSHOT, "unknown-function"),
        (Function.REMOTE, "unknown-function"),
    }


def test_waiting_next_gets_a_counted_error_when_the_daemon_stops(s: Subject) -> None:
    request = Request(Function.NEXT, 1, int(Flag.LISTEN), START, b"a")
    assert s.engine.handle("session", request, START) is None
    s.engine.shut_down(START)
    figures = s.figures()
    assert figures["fastjournal_request_errors_total{shutting-down,next}"] == 1
    assert figures["fastjournal_requests_total{next}"] == 1


def test_entries_stand_under_their_state(s: Subject) -> None:
    for name in b"abcd":
        s.set(b"a:1:0:%c" % name)
    s.set(b"b:1:%d:x" % (START + 5 * SECOND))
    s.set(b"just a key")
    s.ask(Function.NEXT, b"a", timeout=SECOND)
    figures = s.figures()
    states = ("due", "delayed", "worked_on", "buried", "plain")
    assert [figures[f"fastjournal_entries{{{state}}}"] for state in states] == [3, 1, 1, 0, 1]
    assert figures["fastjournal_domains"] == 2
    assert sum(figures[f"fastjournal_entries{{{state}}}"] for state in states) == 6


def test_plain_entry_that_is_buried_counts_once(s: Subject) -> None:
    s.set(b"just a key")
    assert s.ask(Function.BURY, b"just a key") == ""
    figures = s.figures()
    assert figures["fastjournal_entries{buried}"] == 1
    assert figures["fastjournal_entries{plain}"] == 0


def test_paused_domains_are_counted(s: Subject) -> None:
    assert s.figures()["fastjournal_paused_domains"] == 0
    assert s.ask(Function.PAUSE, b"a", ttl=SECOND) == ""
    assert s.figures()["fastjournal_paused_domains"] == 1
    assert s.figures()["fastjournal_all_paused"] == 0
    assert s.ask(Function.PAUSE, ttl=SECOND) == ""
    assert s.figures()["fastjournal_paused_domains"] == 1
    assert s.figures()["fastjournal_all_paused"] == 1


def test_plain_entry_that_is_worked_on_counts_once(s: Subject) -> None:
    s.set(b"just a key")
    assert s.ask(Function.GET, b"just a key", int(Flag.TIMEOUT), timeout=SECOND) == ""
    figures = s.figures()
    assert figures["fastjournal_entries{worked_on}"] == 1
    assert figures["fastjournal_entries{plain}"] == 0


def test_leases_that_ran_out_are_counted_and_those_given_back_are_not(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.ask(Function.NEXT, b"a", timeout=SECOND)
    entry = s.engine.store.find(b"a:1:0:x")
    assert entry is not None
    flags = int(Flag.TIMEOUT | Flag.WORKED_ON)
    assert s.ask(Function.RELEASE, b"a:1:0:x", flags, timeout=entry.token) == ""
    assert s.figures()["fastjournal_leases_lost_total"] == 0
    s.ask(Function.NEXT, b"a", timeout=SECOND)
    s.clock.instant_us += 2 * SECOND
    s.engine.advance(s.clock.instant_us)
    assert s.figures()["fastjournal_leases_lost_total"] == 1


def test_oldest_due_entry_counts_from_its_instant(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START - SECOND))
    s.set(b"b:1:%d:x" % (START - 3 * SECOND))
    s.set(b"c:1:%d:x" % (START + 60 * SECOND))
    s.clock.instant_us += SECOND
    figures = s.figures()
    ages = {name: figures[f"fastjournal_domain_oldest_due_seconds{{{name}}}"] for name in "abc"}
    assert ages == {"a": 2, "b": 4, "c": 0}
    assert figures["fastjournal_oldest_due_seconds"] == 4


def test_age_of_a_backlog_with_nothing_due_is_none(s: Subject) -> None:
    assert s.figures()["fastjournal_oldest_due_seconds"] == 0


def test_domains_have_series_only_with_most_waiting_entries(s: Subject) -> None:
    for number in range(METRICS_DOMAINS_MAX + 5):
        for at in range(number + 1):
            s.set(b"d%d:1:0:%d" % (number, at))
    waiting = {
        name.partition("{")[2].rstrip("}"): count
        for name, count in s.figures().items()
        if name.startswith("fastjournal_domain_waiting_entries")
    }
    assert waiting == {f"d{number}": number + 1 for number in range(5, METRICS_DOMAINS_MAX + 5)}


NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: b":" not in name)
ODD = st.sampled_from([b"\\", b"\\n", b"\n", b'"', b"\xff", b"\\xff", b"a\r", b"\x00", b"\\\\xff"])


@given(st.sets(NAMES | ODD, max_size=METRICS_DOMAINS_MAX))
def test_domains_of_any_names_have_distinct_series(names: set[bytes]) -> None:
    subject = Subject()
    for name in names:
        subject.set(name + b":1:0:x")
    labels = {shown(name) for name in names}
    assert len(labels) == len(names)
    text = trio.run(Metrics(subject.server.runtime).text).decode()
    found = {
        sample.labels["domain"]
        for family in text_string_to_metric_families(text)
        if family.name == "fastjournal_domain_waiting_entries"
        for sample in family.samples
    }
    assert found == labels


def test_metrics_of_many_domains_let_others_have_their_turn(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.observability.domain_totals.SLICE_SECONDS", 0)
    for number in range(50):
        s.set(b"d%d:1:0:x" % number)

    async def take_turns() -> tuple[bytes, bytes]:
        texts: list[bytes] = []

        async def ask() -> None:
            texts.append(await Metrics(s.server.runtime).text())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for number in range(50, 100):
                await trio.lowlevel.checkpoint()
                assert not texts or number > 90
                # the table of domains changes while it is gone through
                s.set(b"d%d:1:0:x" % number)
                assert s.ask(Function.DELETE, b"d%d:1:0:x" % (number - 50)) == ""
        return texts[0], await Metrics(s.server.runtime).text()

    during, afterwards = trio.run(take_turns)
    assert samples(during)["fastjournal_domains"] == 50
    assert samples(afterwards)["fastjournal_entries{due}"] == 50


def test_key_index_is_measured_by_the_keys_of_deleted_entries(s: Subject) -> None:
    s.server.runtime.engine.store.keys.sorted_keys()
    key = b"plain".ljust(4000, b".")
    name = "fastjournal_memory_bytes{index}"
    s.set(key)
    assert s.figures()[name] == 0
    assert s.ask(Function.DELETE, key, flags=Flag.OVERWRITE) == ""
    assert 4000 < s.figures()[name] < 4100


def test_log_is_measured(s: Subject) -> None:
    s.set(b"a:1:0:x", int(Flag.PERSIST))

    async def settle() -> None:
        await s.server.runtime.commit.wait_settled(s.server.runtime.writer.appended)

    trio.run(settle)
    figures = s.figures()
    appended = s.server.runtime.writer.appended
    assert figures["fastjournal_log_bytes"] == appended
    assert figures["fastjournal_commit_bytes_sum"] == appended
    assert figures["fastjournal_commit_bytes_count"] == 1
    assert figures["fastjournal_sync_seconds_count"] == 1
    assert 0 < figures["fastjournal_log_live_bytes"] < appended
    assert figures["fastjournal_log_segments"] == 1


def test_free_space_of_the_disk_has_gauges_and_no_inodes_where_the_disk_counts_none(
    s: Subject,
) -> None:
    names = ("fastjournal_disk_free_bytes", "fastjournal_disk_free_inodes")
    assert not set(names) & set(s.figures())
    for space in (DiskSpace(1000, 63), DiskSpace(2000, None)):
        s.server.runtime.counters.disk_space = space
        figures = s.figures()
        assert [figures.get(name) for name in names] == [space.bytes, space.inodes]


def test_rest_is_there(s: Subject) -> None:
    s.clock.instant_us += 90 * SECOND
    s.engine.context.read_only = True
    figures = s.figures()
    assert figures["fastjournal_uptime_seconds"] == 90
    assert figures["fastjournal_read_only"] == 1
    assert figures["fastjournal_connections"] == 0
    assert figures["fastjournal_tombstones"] == 0
    assert figures["process_resident_memory_bytes"] > 10_000_000
    assert figures["process_cpu_seconds_total"] > 0
    assert figures["process_open_fds"] > 2
    [build] = [name for name in figures if name.startswith("fastjournal_build_info")]
    labels = (build_info().commit, _native.status, python_version(), version("fastjournal"))
    assert f"{{{','.join(labels)}}}" in build
    assert figures[build] == 1


def test_domains_with_most_entries_have_gauges_by_state(s: Subject) -> None:
    for key in (b"a:1:0:x", b"a:1:0:y", b"a:1:0:z", b"b:1:0:x"):
        s.set(key)
    assert s.ask(Function.BURY, b"a:1:0:y", value=b"bad") == ""
    assert s.ask(Function.NEXT, b"a") == ""
    figures = s.figures()
    for state, number in (("waiting", 1), ("worked_on", 1), ("buried", 1)):
        assert figures[f"fastjournal_domain_{state}_entries{{a}}"] == number
        assert figures[f"fastjournal_domain_{state}_entries{{b}}"] == (state == "waiting")


def test_compaction_debt_is_the_part_of_the_log_above_its_usual_size(s: Subject) -> None:
    assert s.figures()["fastjournal_compaction_debt"] == 0
    for at in range(100):
        s.set(b"a:1:0:%d" % at, int(Flag.PERSIST))
        assert s.ask(Function.DELETE, b"a:1:0:%d" % at, int(Flag.PERSIST)) == ""
    s.server.runtime.writer.segment_bytes_max = 100
    figures = s.figures()
    usual = 2 * figures["fastjournal_log_live_bytes"] + 2 * 100
    debt = figures["fastjournal_log_bytes"] / usual - 1
    assert figures["fastjournal_compaction_debt"] == pytest.approx(debt)
    assert debt > 0.1


def test_process_is_measured_where_proc_shows_processes_only(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ProcSubset=pid`` of the systemd unit hides /proc/stat."""
    real: Any = open

    def hidden(path: object, *args: Any, **named: Any) -> object:
        if str(path).startswith("/proc/") and not str(path).startswith("/proc/self/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return real(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", hidden)
        before = s.figures()
        with ExitStack() as files:
            for _ in range(50):
                files.enter_context(real(os.devnull, "rb"))
            during = s.figures()
    assert during["process_open_fds"] - before["process_open_fds"] == 50
    assert during["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert before["process_resident_memory_bytes"] > 10_000_000
    assert before["process_virtual_memory_bytes"] > before["process_resident_memory_bytes"]
    assert during["process_cpu_seconds_total"] > before["process_cpu_seconds_total"] > 0
    # this process began before the test, and since the machine
    age = time.time() - during["process_start_time_seconds"]
    assert 0 < age < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_descriptors_are_counted_outside_of_the_event_loop(s: Subject) -> None:
    real, in_main = os.listdir, []

    def listed(path: str) -> list[str]:
        if path != "/proc/self/fd":
            return real(path)
        in_main.append(threading.current_thread() is threading.main_thread())
        return ["0", "1", "2"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.listdir", listed)
        assert s.figures()["process_open_fds"] == 2
    assert in_main == [False]


def test_scrape_survives_when_no_file_can_be_opened(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", no_file)
        figures = s.figures()
    assert "process_resident_memory_bytes" not in figures
    assert "fastjournal_uptime_seconds" in figures


def test_values_out_of_memory_are_counted_where_there_is_a_limit(s: Subject) -> None:
    assert not [name for name in s.figures() if "memory_limit" in name or "values" in name]
    s = Subject(memory_limit=1)
    assert s.ask(Function.SET, b"key", Flag.PERSIST, value=b"x" * 1000) == ""
    before = s.figures()
    assert before["fastjournal_entries_memory_bytes"] > 1000
    s.server.runtime.writer.write()
    s.server.runtime.writer.sync()
    assert not s.server.evictor.evict()
    after = s.figures()
    assert after["fastjournal_entries_memory_bytes"] < before["fastjournal_entries_memory_bytes"]
    assert after["fastjournal_entries_memory_limit_bytes"] == 1
    assert after["fastjournal_cold_values"] == after["fastjournal_values_evicted_total"] == 1


def test_documentation_lists_every_metric_with_its_type_and_labels() -> None:
    s = Subject(memory_limit=1)
    s.set(b"a:1:0:x")
    s.ask(Function.DELETE, b"none")
    s.server.runtime.counters.protocol_errors["bad-request"] += 1
    s.server.runtime.counters.latencies.answered.append((0, 0.0, Function.SET, 1))
    s.server.runtime.counters.latencies.end_turn(0.1, settled=0)
    s.server.runtime.counters.disk_space = DiskSpace(1, 1)
    s.engine.counters.count_replaced(b"a", b"b")
    families = text_string_to_metric_families(trio.run(Metrics(s.server.runtime).text).decode())
    remote = RemoteServer().server.runtime
    assert remote.remote is not None
    remote.remote.requests["create", "ok"] += 1
    served = set()
    for family in (*families, *remote_metrics(remote)):
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        suffix = "_total" if family.type == "counter" else ""
        served.add((family.name + suffix, family.type, frozenset(labels)))
    listed = set()
    for line in OPERATING.read_text(encoding="utf-8").splitlines():
        names, _, rest = line.removeprefix("| ").partition(" | ")
        for name, labels in re.findall(r"`((?:fastjournal|process)_\w+)(?:\{([\w,]+)\})?`", names):
            if line.startswith("| `"):
                words = frozenset(labels.split(",")) if labels else frozenset()
                listed.add((name, rest.partition(" | ")[0], words))
    assert listed == served


@pytest.mark.parametrize(
    "address", ["localhost:0", "127.0.0.1:9924", "127.1.2.3:1", "[::1]:65535", ""]
)
def test_loopback_address_is_taken(address: str) -> None:
    assert load_config(None, {"cmdlog_path": "/log", "http": address}).http == address


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host.example:1"])
def test_http_address_beyond_this_machine_is_taken_only_where_that_is_meant(address: str) -> None:
    given = {"cmdlog_path": "/log", "http": address}
    with pytest.raises(ConfigError, match=r"--http .*--insecure"):
        load_config(None, given)
    tls = {"tls_cert": "/cert", "tls_key": "/key"}
    for allowing in ({"insecure": True}, {"auth_tokens": "/tokens"}, tls):
        assert load_config(None, given | allowing).http == address


@pytest.mark.parametrize("address", ["localhost", "localhost:-1", "unix:/socket", ":1", "h:65536"])
def test_http_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--http .*not HOST:PORT"):
        load_config(None, {"cmdlog_path": "/log", "http": address, "insecure": True})


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, "1"), (1, "1"), (2, "2"), (3, "4"), (4, "4"), (5, "8"), (8, "8"), (9, "+Inf")],
)
def test_value_falls_under_the_first_power_of_two_that_is_not_smaller(
    value: int, bucket: str
) -> None:
    values = Histogram(3)
    values.add(value)
    family = histogram("h", "text", values, 1)
    counts = {x.labels["le"]: x.value for x in family.samples if x.name == "h_bucket"}
    assert list(counts) == ["1", "2", "4", "8", "+Inf"]
    assert next(bound for bound, count in counts.items() if count) == bucket
    assert counts["+Inf"] == 1
    assert values.total == value


def test_histogram_has_bounds_in_its_unit() -> None:
    values = Histogram(20)
    for value in (3, 5_000_000):
        values.add(value)
    counts = {x.labels["le"]: x.value for x in histogram("h", "t", values, 1e-6).samples[:-2]}
    assert list(counts)[:3] == ["1e-06", "2e-06", "4e-06"]
    assert (counts["4e-06"], counts["1.048576"], counts["+Inf"]) == (1, 1, 2)


def test_histogram_of_latency_has_a_series_of_buckets_for_each_function_asked_for(
    s: Subject,
) -> None:
    assert not [name for name in s.figures() if "request_seconds" in name]
    latencies = s.server.runtime.counters.latencies
    for function, number in ((Function.SET, 256), (Function.GET, 1), (4711, 1)):
        latencies.answered.append((0, 1.0, function, number))
    latencies.end_turn(1.003, settled=0)
    figures = s.figures()
    counts = {name: v for name, v in figures.items() if "request_seconds_count" in name}
    assert counts == {
        "fastjournal_request_seconds_count{set}": 256,
        "fastjournal_request_seconds_count{get}": 1,
        "fastjournal_request_seconds_count{unknown}": 1,
    }
    assert figures["fastjournal_request_seconds_sum{set}"] == pytest.approx(0.768, rel=1e-3)
    bounds = re.findall(r"request_seconds_bucket\{set,(.*?)\}", " ".join(figures))
    assert bounds == [*(f"{2**at / 1e6:.9g}" for at in range(6, 25)), "+Inf"]
    assert figures["fastjournal_request_seconds_bucket{set,0.002048}"] == 0
    assert figures["fastjournal_request_seconds_bucket{set,0.004096}"] == 256


def trouble_none(_subject: Subject) -> None:
    pass


def trouble_log(subject: Subject) -> None:
    subject.server.runtime.writer.close()


def trouble_space(subject: Subject) -> None:
    subject.engine.context.read_only = True


@pytest.mark.parametrize(
    ("trouble", "health"), [(trouble_none, 200), (trouble_space, 200), (trouble_log, 503)]
)
def test_health_is_lost_with_the_log(
    s: Subject, trouble: Callable[[Subject], None], health: int
) -> None:
    trouble(s)
    assert s.page("/healthz").status == health


def test_daemon_that_has_not_started_is_not_ready(s: Subject) -> None:
    assert s.page("/readyz") == HttpResponse(s.page("/readyz").status, b"starting\n")
    assert s.page("/readyz").status == 503


def fail_jobs(s: Subject, domain: bytes, number: int) -> None:
    """Let jobs of a domain fail, each once."""
    for at in range(number):
        s.set(b"%s:1:0:%d" % (domain, at))
        s.clock.instant_us += SECOND
        assert s.ask(Function.NEXT, domain) == ""
        entry = s.engine.store.find(b"%s:1:0:%d" % (domain, at))
        assert entry is not None
        flags = int(Flag.WORKED_ON | Flag.TIMEOUT)
        request = Request(
            Function.RELEASE, 1, flags, s.clock.instant_us, entry.key, None, ValueType.STRING,
            b"SMTP 550", timeout=entry.token, ttl=3600 * SECOND,
        )  # fmt: skip
        data = s.engine.handle("session", request, s.clock.instant_us)
        assert isinstance(data, bytes)
        assert decode_reply(data).error == ""


def outcomes(figures: dict[str, float], domain: str = "") -> list[float]:
    """Return completed, failed, lost and buried jobs, and deliveries: of a domain, or of all."""
    infix, label = ("domain_", f"{{{domain}}}") if domain else ("", "")
    names = ("jobs_completed", "attempts_failed", "leases_lost", "jobs_buried")
    found = [figures[f"fastjournal_{infix}{name}_total{label}"] for name in names]
    return [*found, figures[f"fastjournal_{infix}job_waited_seconds_count{label}"]]


@pytest.mark.parametrize("persist", [0, int(Flag.PERSIST)])
def test_what_became_of_jobs_is_counted_by_domain(s: Subject, persist: int) -> None:
    leased = int(Flag.WORKED_ON | Flag.TIMEOUT)
    for key in (b"a:1:0:done", b"a:2:0:lost", b"a:3:0:bad", b"b:1:0:popped", b"c:1:0:gone"):
        s.set(key, persist)
    s.clock.instant_us += 3 * SECOND
    for name in (b"a", b"a", b"a"):
        assert s.ask(Function.NEXT, name, timeout=9 * SECOND) == ""
    assert s.ask(Function.NEXT, b"b", int(Flag.OVERWRITE)) == ""
    s.clock.instant_us += 2 * SECOND
    done, bad = (s.engine.store.find(key) for key in (b"a:1:0:done", b"a:3:0:bad"))
    assert done is not None
    assert bad is not None
    assert s.ask(Function.DELETE, done.key, leased, timeout=done.token) == ""
    assert s.ask(Function.BURY, bad.key, leased, timeout=bad.token) == ""
    assert s.ask(Function.DELETE, b"c:1:0:gone") == "", "deleted, but not completed"
    s.clock.instant_us += 60 * SECOND
    s.engine.advance(s.clock.instant_us)
    figures = s.figures()
    assert outcomes(figures, "a") == [1, 0, 1, 1, 3]
    assert outcomes(figures, "b") == [1, 0, 0, 0, 1]
    assert outcomes(figures) == [2, 0, 1, 1, 4]
    assert figures["fastjournal_domain_job_waited_seconds_sum{a}"] == 9
    assert figures["fastjournal_domain_job_run_seconds_sum{a}"] == 2
    assert figures["fastjournal_job_run_seconds_count"] == 1, "a popped job has no known run"
    assert not any("{c}" in name and "_total" in name for name in figures)


def test_jobs_completed_together_are_counted_each(s: Subject) -> None:
    token = None
    for at in range(6):
        s.set(b"%s:1:0:%d" % (b"ab"[at % 2 :][:1], at), int(Flag.PERSIST))
    s.clock.instant_us += SECOND
    request = Request(Function.NEXT, 1, 0, s.clock.instant_us, b"", count=6)
    data = s.engine.handle("session", request, s.clock.instant_us)
    assert isinstance(data, bytes)
    reply = decode_reply(data)
    token, keys = reply.timeout, [pair.key for pair in reply.pairs or ()]
    s.clock.instant_us += 4 * SECOND
    now = s.clock.instant_us
    flags = int(Flag.WORKED_ON)
    requests = [Request(Function.DELETE, 1, flags, now, key, timeout=token) for key in keys]
    assert len(s.engine.handle_bulk("session", requests, now)) == 6
    figures = s.figures()
    for domain in "ab":
        assert outcomes(figures, domain) == [3, 0, 0, 0, 3]
        assert figures[f"fastjournal_domain_job_waited_seconds_sum{{{domain}}}"] == 3
        assert figures[f"fastjournal_domain_job_run_seconds_sum{{{domain}}}"] == 12
    below = {
        float(name.split("{")[1].split(",")[1].rstrip("}")): value
        for name, value in figures.items()
        if name.startswith("fastjournal_domain_job_run_seconds_bucket{a,")
    }
    assert {bound: value for bound, value in below.items() if bound < 4} == {
        bound: 0 for bound in below if bound < 4
    }
    assert below[4.194304] == 3


def test_fifty_jobs_that_fail_are_seen_though_none_is_due(s: Subject) -> None:
    fail_jobs(s, b"mails", 50)
    figures = s.figures()
    assert outcomes(figures, "mails") == [0, 50, 0, 0, 50]
    assert figures["fastjournal_oldest_due_seconds"] == 0
    assert figures["fastjournal_domain_oldest_waiting_seconds{mails}"] == 50
    assert figures["fastjournal_oldest_waiting_seconds"] == 50


def test_domain_that_fails_is_counted_apart_among_very_many(s: Subject) -> None:
    fail_jobs(s, b"mails", 3)
    for number in range(COUNTED_DOMAINS_MAX + 10):
        name = b"host%d" % number
        s.set(name + b":1:0:x")
        assert s.ask(Function.NEXT, name, int(Flag.OVERWRITE)) == ""
    assert len(s.engine.store.scheduler.job_counts.by_domain) <= COUNTED_DOMAINS_MAX
    fail_jobs(s, b"late", 2)
    figures = s.figures()
    assert outcomes(figures, "mails") == [0, 3, 0, 0, 3]
    # its first delivery came before its first failure, and is in the sum
    assert outcomes(figures, "late") == [0, 2, 0, 0, 1]
    assert outcomes(figures) == [COUNTED_DOMAINS_MAX + 10, 5, 0, 0, COUNTED_DOMAINS_MAX + 15]
    # a host that gave its counts up begins again
    s.set(b"host0:1:0:x")
    assert s.ask(Function.NEXT, b"host0", int(Flag.OVERWRITE)) == ""
    assert s.engine.store.scheduler.job_counts.by_domain[b"host0"].completed == 1
    check_store(s.engine.store, s.clock.instant_us)


def test_waiting_jobs_keep_their_age_over_a_restart() -> None:
    logged = LoggedEngine(1, Settings())
    key = b"mails:1:0:fine"
    assert logged.ask(ask(Function.SET, key, b"v", flags=Flag.PERSIST, at=logged.now))
    for _ in range(2):
        logged.now += 10 * SECOND
        reply = logged.ask(ask(Function.NEXT, b"mails", timeout=SECOND, at=logged.now))
        assert reply is not None
        fields = {"flags": Flag.WORKED_ON, "timeout": reply.timeout, "ttl": SECOND}
        failed = ask(
            Function.RELEASE, key, b"SMTP 550", kind=ValueType.STRING, at=logged.now, **fields
        )
        assert logged.ask(failed) is not None
    before = about_domain(logged.engine.context, b"mails", logged.now)
    assert (before["attempts_failed"], before["oldest_waiting_us"]) == (2, 20 * SECOND)
    logged.restart()
    logged.now += 5 * SECOND
    logged.engine.advance(logged.now)
    after = about_domain(logged.engine.context, b"mails", logged.now)
    assert (after["attempts_failed"], after["oldest_waiting_us"]) == (0, 25 * SECOND)
    assert after["oldest_due_us"] == 4 * SECOND
    check_store(logged.engine.store, logged.now)
