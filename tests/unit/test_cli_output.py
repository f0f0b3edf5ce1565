"""Output of fj-cli: JSON for programs, and text that harms no terminal."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from fastjournal.client.core.results import Entry
from fastjournal.client.core.stats import DaemonStats, DomainStats
from fastjournal.protocol import Meta, State, ValueType
from fj_cli.output import bytes_field, entry_fields, show_field, write_table
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import NAME
from fj_cli.text import json_text, lay_out
from fj_cli.top_screen import FIRST_PART, PART, DomainRounds, Rates, Sample, Screen, rates_between


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"plain", {"value": "plain"}),
        ("ünïcode\n".encode(), {"value": "ünïcode\n"}),
        (b"", {"value": ""}),
        (b"\xff\x00", {"value_b64": "/wA="}),
    ],
)
def test_bytes_are_text_where_they_are_utf_8_and_else_base64(
    data: bytes, fields: dict[str, Any]
) -> None:
    assert bytes_field("value", data) == fields


def test_argument_that_is_not_utf_8_keeps_its_bytes() -> None:
    assert NAME.convert("a\udcff", None, None) == b"a\xff"


def test_journal_entry_shows_the_parts_of_its_key_and_the_delay_it_has() -> None:
    entry = Entry(
        b"d:007:0000000000000009:x:y",
        b"u",
        ValueType.STRING,
        b"v",
        Meta(not_before_us=50, attempts=2, state=State.PERSISTENT | State.JOURNAL, expires_us=0),
        77,
    )
    fields = entry_fields(entry)
    assert {name: fields[name] for name in list(fields)[:10]} == {
        "key": "d:007:0000000000000009:x:y",
        "uri": "u",
        "domain": "d",
        "priority": 7,
        "not_before_us": 50,
        "id": "x:y",
        "type": "string",
        "value": "v",
        "token": 77,
        "attempts": 2,
    }
    assert fields["state"] == ["persistent", "journal"]
    assert fields["expires_us"] is None


def test_entry_that_was_found_by_its_uri_shows_the_key_that_it_is_known_by() -> None:
    fields = entry_fields(Entry(b"https://a/", b"d:1:2:x", ValueType.BUFFER, b""))
    assert (fields["key"], fields["uri"], fields["domain"]) == ("d:1:2:x", "https://a/", "d")
    linked = entry_fields(Entry(b"plain", b"other", ValueType.BUFFER, b""))
    assert (linked["key"], linked["uri"]) == ("plain", "other")


@pytest.mark.parametrize(
    ("value_type", "data", "value"),
    [
        (ValueType.VOID, b"", None),
        (ValueType.INTEGER, b"\xff", -1),
        (ValueType.FLOAT, b"\x3f\x80\0\0", 1.0),
        (ValueType.BOOLEAN, b"\1", True),
        (ValueType.BUFFER, b"x", "x"),
        (ValueType.INTEGER, b"abc", "abc"),
        (ValueType.BOOLEAN, b"", ""),
    ],
)
def test_value_has_the_json_type_that_it_stands_for(
    value_type: ValueType, data: bytes, value: object
) -> None:
    fields = entry_fields(Entry(b"plain", value_type=value_type, value=data))
    assert fields == {"key": "plain", "type": value_type.name.lower(), "value": value}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("entries", 1234567, "1,234,567"), ("uptime_us", 90_000_000, "1m 30s"),
        ("created_us", 0, ""), ("token", 1_000_000, "1000000"), ("read_only", False, "False"),
        ("keys", ["a"], '["a"]'), ("expires_us", None, ""), ("state", "ready", "ready"),
    ],
)  # fmt: skip
def test_field_is_shown_as_what_its_name_says(name: str, value: object, shown: str) -> None:
    assert show_field(name, value) == shown


def test_value_of_a_type_that_is_not_known_is_shown_as_bytes() -> None:
    assert entry_fields(Entry(b"k", value_type=9, value=b"x")) == {
        "key": "k",
        "type": "9",
        "value": "x",
    }


# --- text for terminals and JSON ------------------------------------------------------------------
# Text for terminals and JSON: nothing of it disturbs a terminal, and all JSON is strict.


HOSTILE = "a\x1b[2J\x07\n\r\x7f\x85\x9b31m\u200b\u202e\u2066\u2028\u2029\ufeff\ud800z"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_json_has_no_character_that_could_disturb_a_terminal(ascii_only: bool) -> None:
    text = json_text({HOSTILE: [HOSTILE, {"x": HOSTILE}]}, ascii_only=ascii_only)
    assert text.isprintable()
    assert json.loads(text) == {HOSTILE: [HOSTILE, {"x": HOSTILE}]}
    assert json_text({"k": "größe"}) == '{"k":"größe"}'
    assert json_text({"k": "größe"}, ascii_only=True).isascii()


def test_floats_that_json_does_not_have_are_strings() -> None:
    fields: dict[str, Any] = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5}
    assert json_text(fields) == '{"a":"NaN","b":["Infinity",{"c":"-Infinity"}],"d":1.5}'


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False)))
def test_json_is_read_as_what_it_was(fields: dict[str, Any]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    wanted = {n: _spelled(v) for n, v in fields.items()}
    for ascii_only in (False, True):
        text = json_text(fields, ascii_only=ascii_only)
        assert text.isprintable()
        assert json.loads(text, parse_constant=refuse) == wanted


def _spelled(value: Any) -> Any:
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, value)


# --- layout of tables -----------------------------------------------------------------------------
# Table layout: columns as wide as their widest cell, and rows that do not fit.


COLUMNS = ("domain", "due", "paused")


def test_table_without_rows_is_its_head() -> None:
    table = lay_out(COLUMNS, [], 80)
    assert (table.head, table.lines) == ("domain   due   paused", [])


def test_table_whose_rows_mostly_do_not_fit_is_none() -> None:
    rows = [("short", "1", ""), ("x" * 90, "2", ""), ("y" * 90, "3", "")]
    assert lay_out(COLUMNS, rows, 80) is None
    assert lay_out(COLUMNS, rows, 200) is not None
    assert lay_out(COLUMNS, [], 5) is None


@given(
    st.lists(st.lists(st.text("aé日", max_size=30), min_size=3, max_size=3), max_size=20),
    st.integers(1, 120),
)
def test_table_is_no_wider_than_the_terminal_and_loses_no_row(
    rows: list[list[str]], width: int
) -> None:
    table = lay_out(COLUMNS, rows, width)
    if table is None:
        return
    lines = [table.head, table.rule, *(line for line in table.lines if line is not None)]
    assert {cell_len(line) for line in lines} == {cell_len(table.rule)}
    assert cell_len(table.rule) + 2 <= width
    for row, line in zip(rows, table.lines, strict=True):
        assert line is None or all(cell in line for cell in row)
    assert 2 * table.lines.count(None) <= len(rows)


def test_row_that_does_not_fit_is_a_block_at_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write_table("Title", COLUMNS, [("a", "1", ""), ("w\x1b" * 30, "2", ""), ("b", "3", "")])
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "",
        " domain   due ",
        " ──────────── ",
        " a          1 ",
        "w\\x1b" * 30,
        "  due  2",
        " b          3 ",
        "",
    ]


# --- progress bars --------------------------------------------------------------------------------
# Progress bars: only where somebody waits for long, and watches.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_bar_is_shown_after_the_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar("verifying", unit="bytes", clock=clock) as bar:
        clock.now += 0.9
        bar.update(1, 2)
        assert terminal.getvalue() == ""
        clock.now += 0.2
        bar.update(1_000_000, 2_000_000)
    assert "verifying" in terminal.getvalue()
    assert "1.0/2.0 MB" in terminal.getvalue()


def test_progress_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stderr", file)
    with ProgressBar("verifying", clock=clock) as bar:
        clock.now += 60
        bar.update(1, None)
    assert file.getvalue() == ""


# --- screen of fj-cli top -------------------------------------------------------------------------
# Live screen of fj-cli top: order, rates and drawing, from samples.


SECOND = 1_000_000


def sample(at: int, *domains: DomainStats, **figures: Any) -> Sample:
    return Sample(at_us=at * SECOND, daemon=DaemonStats(**figures), domains=list(domains))


def drawn(screen: Screen, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height)
    with console.capture() as capture:
        console.print(screen.draw(height, width))
    return capture.get().splitlines()


def test_screen_escapes_what_could_disturb_a_terminal() -> None:
    screen = Screen("unix:/run/x")
    screen.take(sample(1, DomainStats(name=b"x\x1b[2J\x9b", due=1)))
    text = "\n".join(drawn(screen, 120, 24))
    assert "\x1b[2J" not in text
    assert "\\x1b[2J" in text


def test_rates_are_differences_a_second() -> None:
    before = sample(10, requests=100, set_requests=10, syncs=4, sync_us=4000, uptime_us=SECOND)
    after = sample(12, requests=300, set_requests=20, syncs=8, sync_us=12000, uptime_us=3 * SECOND)
    rates = rates_between(before, after)
    assert (rates.requests, rates.sets, rates.sync_us) == (100, 5, 2000)


def test_rates_of_the_first_sample_and_over_a_restart_are_zero() -> None:
    before = sample(10, requests=100, uptime_us=9 * SECOND)
    assert rates_between(None, before) == Rates()
    assert rates_between(before, sample(12, requests=200, uptime_us=SECOND)) == Rates()
    assert rates_between(before, before) == Rates()


def test_domains_of_parts_are_ordered_together_and_leave_with_the_round_that_misses_them() -> None:
    def named(*names: str, **figures: int) -> list[DomainStats]:
        return [DomainStats(name=name.encode(), **figures) for name in names]

    def take(at: int, part: list[DomainStats], again: Any = (), *, ends: bool = False) -> str:
        newer = sample(at, *part)
        screen.take(structs.replace(newer, again=list(again), ends_round=ends))
        text = drawn(screen, 80, 24)[-1]
        assert screen.shown == [domain.name for domain in screen.ordered()]
        return text

    screen = Screen("s")
    assert take(1, named("a", "b", due=1)).startswith("2 of 2+ domains")
    assert take(2, named("y", "z", due=9), ends=True).startswith("4 of 4 domains")
    assert screen.shown == [b"y", b"z", b"a", b"b"]
    # the next round: a is gone, c is new, z is on the screen and read anew, x is unknown
    take(4, named("b", "c", entries=8), named("z", "x", due=5, entries=6))
    assert screen.shown == [b"y", b"z", b"a", b"b", b"c"]
    assert "+3" in "\n".join(drawn(screen, 80, 24)), "6 entries more in 2 seconds"
    assert take(5, named("y", "z", due=9), ends=True).startswith("4 of 4 domains")
    assert screen.shown == [b"y", b"z", b"b", b"c"]


def test_domains_of_another_filter_leave_at_once() -> None:
    screen = Screen("s")
    screen.take(sample(1, DomainStats(name=b"a"), DomainStats(name=b"b")))
    newer = sample(2, DomainStats(name=b"bb"))
    screen.take(structs.replace(newer, prefix=b"b", ends_round=False))
    assert [domain.name for domain in screen.ordered()] == [b"bb"]


def test_rounds_read_many_domains_first_and_then_a_part_with_each_sample() -> None:
    scans: list[bytes] = []
    number = FIRST_PART + PART + 1

    def scan(prefix: bytes) -> Iterator[DomainStats]:
        scans.append(prefix)
        return iter([DomainStats(name=b"%07d" % n) for n in range(number)])

    rounds = DomainRounds(scan)
    lengths = [(len(part), ends) for part, ends in (rounds.next_part(b"") for _ in range(4))]
    assert lengths == [(FIRST_PART, False), (PART, False), (1, True), (PART, False)]
    assert (len(rounds.next_part(b"x")[0]), scans) == (FIRST_PART, [b"", b"", b"x"])


def test_order_follows_the_change_of_entries() -> None:
    screen = Screen("s")
    screen.take(sample(1, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=5)))
    screen.take(sample(3, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=1)))
    while screen.sort != "change":
        assert screen.press("s")
    assert [domain.name for domain in screen.ordered()] == [b"b", b"a"]
    assert "-2" in "\n".join(drawn(screen, 80, 24))
    assert not screen.press("q")


def test_top_shows_the_role_and_what_the_object_store_has_not() -> None:
    def head(**stats: int) -> str:
        screen = Screen("a:1")
        screen.take(Sample(at_us=1, daemon=DaemonStats(**stats), domains=[]))
        console = Console(width=120, file=io.StringIO())
        console.print(screen.draw(24, 120))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()[0].rstrip()

    assert head(uptime_us=1).endswith("log 0 MB")
    stored = head(remote_epoch=3, remote_lag_bytes=70, remote_lag_us=30_000)
    assert stored.endswith("  primary of epoch 3, stored")
    behind = head(remote_epoch=3, remote_lag_bytes=2_500_000, remote_lag_us=4_000_000)
    assert behind.endswith("  primary of epoch 3, 2.5 MB not stored since 4s")
