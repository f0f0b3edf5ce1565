"""Options of the daemon: by flag and by file, their bounds, and errors that name them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from fastjournal.errors import ConfigError
from fastjournal.numeric import exponential_backoff
from fastjournald.config.load import load_config
from fastjournald.config.options import PROGRAM_BYTES, Config
from fastjournald.main import main

OPTIONS: dict[str, object] = {
    "listen": ["unix:/run/x"],
    "ready-file": "/run/ready", "socket-mode": "0600", "tls-cert": "/tls/cert",
    "tls-key": "/tls/key", "tls-client-ca": "/tls/ca", "auth-tokens": "/tokens", "auth-timeout": 3,
    "cmdlog-path": "/var/log-a", "cmdlog-sync": "interval", "cmdlog-sync-int": 250,
    "cmdlog-clean-int": 60_000, "cmdlog-seg-size": 1_000_000, "max-value": 2000,
    "max-reply": 70_000, "max-connections": 7, "max-inflight": 70_000, "request-timeout": 9,
    "send-timeout": 7, "idle-timeout": 8, "memory-limit": 123, "min-free-bytes": 5,
    "default-lease": 60, "max-attempts": 9, "retry-delay": 3, "retry-delay-max": 30,
    "default-interval": 2.0, "default-jobs": 3, "tombstone-ttl": 30, "tombstones-max": 44,
    "tombstones-bytes-max": 5000, "max-clock-skew": 2, "max-postpone": 7, "snapshot-dir": "/snap",
    "archive-dir": "/archive", "archive-bytes-max": 100_000_000, "http": "127.0.0.1:9924",
    "log-level": "debug", "log-format": "json", "remote-log": "s3://bucket/log",
    "remote-ack": "async", "remote-lag-bytes-max": 5000, "remote-interval": 30, "remote-poll": 250,
    "takeover-after": 5, "remote-keep": 60, "remote-node": "left",
}  # fmt: skip
FLAGS = {"repair", "insecure"}
"""Options without a value."""


CERT, KEY = ("--tls-cert", "/tls/cert"), ("--tls-key", "/tls/key")
PARTNERS = {
    "tls-cert": KEY,
    "tls-key": CERT,
    "tls-client-ca": CERT + KEY,
    "archive-bytes-max": ("--archive-dir", "/archive"),
}
"""Options that one needs."""
OTHERS = {
    "cmdlog-sync": "os",
    "log-level": "error",
    "log-format": "text",
    "socket-mode": "640",
    "http": "127.0.0.1:9925",
    "default-interval": "20",
    "remote-ack": "durable",
}
"""One more value of an option; of all others its value with a 0 behind it is one."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a configuration file that a test writes."""
    return tmp_path / "fastjournald.toml"


class Started(Exception):  # noqa: N818 - it is no error
    """The daemon would run with this configuration."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config


@pytest.fixture(autouse=True)
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop where the options are known."""

    def run(config: Config, *_: object) -> int:
        raise Started(config)

    monkeypatch.setattr("fastjournald.main._run", run)


def start(*arguments: str) -> Config:
    """Return what the daemon would run with."""
    with pytest.raises(Started) as started:
        main(arguments)
    return started.value.config


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a daemon says that ends with 64 instead of running."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 64
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_table_of_this_test_has_every_option() -> None:
    attributes = {name.replace("-", "_") for name in [*OPTIONS, *FLAGS]}
    assert attributes == set(Config.__struct_fields__)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_works_by_flag_and_by_file_and_the_flag_wins(file: Path, name: str) -> None:
    expected = OPTIONS[name]
    by_flag = str(expected[0] if isinstance(expected, list) else expected)
    attribute = name.replace("-", "_")
    path = () if name == "cmdlog-path" else ("--cmdlog-path", "/log")
    path += PARTNERS.get(name, ())
    assert getattr(start(*path, f"--{name}", by_flag), attribute) == expected
    file.write_text(f"{attribute} = {json.dumps(expected)}\n")
    assert getattr(start(*path, "--config", str(file)), attribute) == expected
    default = getattr(Config(), attribute)
    assert default != expected
    other = OTHERS.get(name, by_flag + "0")
    won = getattr(start(*path, "--config", str(file), f"--{name}", other), attribute)
    # the file has the expected value; an option of two values has no third one
    assert won != expected
    assert won != default or other == default


def test_repair_works_by_flag_and_by_file(file: Path) -> None:
    file.write_text("repair = true\n")
    assert not start("--cmdlog-path", "/log").repair
    assert start("--cmdlog-path", "/log", "--repair").repair
    assert start("--cmdlog-path", "/log", "--config", str(file)).repair


def test_listen_may_be_repeated_and_replaces_what_the_file_says(file: Path) -> None:
    file.write_text('cmdlog_path = "/log"\nlisten = ["127.0.0.1:1"]\n')
    config = start("--config", str(file), "--listen", "127.0.0.1:2", "--listen", "unix:/x")
    assert config.listen == ["127.0.0.1:2", "unix:/x"]


def test_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for name in [*OPTIONS, *FLAGS, "config"]:
        assert f"--{name}" in said
    flat = re.sub(r"\s+", " ", said)
    for name in OPTIONS:
        default = getattr(Config(), name.replace("-", "_"))
        if isinstance(default, int):
            assert re.search(rf"--{name} .*?\[{default}\]", flat), f"--{name}: {default}"


BAD_VALUES = {
    "cmdlog-sync": ('"sometimes"', "sometimes"), "cmdlog-sync-int": ("0", "0"),
    "cmdlog-clean-int": ("-1", "-1"), "cmdlog-seg-size": ("100", "100"),
    "socket-mode": ('"rw-rw----"', "0999"), "auth-timeout": ("0", "0"), "max-value": ("0", "0"),
    "max-reply": ("1", "1"), "max-connections": ("0", "0"), "max-inflight": ("65535", "65535"),
    "request-timeout": ("0", "0"), "send-timeout": ("0", "0"), "idle-timeout": ("-1", "-1"),
    "memory-limit": ("-5", "-5"), "min-free-bytes": ("-1", "-1"), "default-lease": ("0", "0"),
    "max-attempts": ("-1", "-1"), "retry-delay": ("-1", "-1"), "retry-delay-max": ("-1", "-1"),
    "default-interval": ("-0.5", "-0.5"), "default-jobs": ("-1", "-1"),
    "tombstone-ttl": ("-1", "-1"), "tombstones-max": ("0", "0"), "tombstones-bytes-max": ("0", "0"),
    "max-clock-skew": ("-1", "-1"), "max-postpone": ("-1", "-1"), "log-level": ('"loud"', "loud"),
    "log-format": ('"xml"', "xml"), "remote-ack": ('"soon"', "soon"), "remote-poll": ("9", "9"),
    "takeover-after": ("0", "0"), "remote-interval": ("-1", "-1"), "remote-keep": ("-1", "-1"),
    "remote-lag-bytes-max": ("-1", "-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_value_names_the_option_and_where_it_stands(
    file: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    in_file, by_flag = BAD_VALUES[name]
    assert f"--{name}" in refusal(capsys, "--cmdlog-path", "/log", f"--{name}", by_flag)
    attribute = name.replace("-", "_")
    for value in (in_file, "[1]"):
        file.write_text(f'cmdlog_path = "/log"\n{attribute} = {value}\n')
        said = refusal(capsys, "--config", str(file))
        assert str(file) in said
        assert attribute in said


def test_default_interval_that_rounds_to_0_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--cmdlog-path", "/log", "--default-interval", "0.0000004")
    assert "--default-interval 4e-07: it rounds to 0 microseconds" in said


def test_default_interval_of_a_microsecond_is_one() -> None:
    config = load_config(None, {"cmdlog_path": "/log", "default_interval": 0.000001})
    assert config.settings().interval_us_default == 1


NUMBERS = sorted(name for name, value in OPTIONS.items() if isinstance(value, int | float))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [2**63, 10**30])
def test_number_beyond_any_sense_is_refused_with_what_is_allowed(
    file: Path, capsys: pytest.CaptureFixture[str], name: str, value: int
) -> None:
    said = refusal(capsys, "--cmdlog-path", "/log", f"--{name}", str(value))
    assert f"--{name}: " in said
    assert "<= " in said
    file.write_text(f"{name.replace('-', '_')} = {value}\n")
    assert "<= " in refusal(capsys, "--config", str(file))


@pytest.mark.parametrize("value", ["many", "1.5", ""])
def test_number_that_is_none_names_its_option(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert "--max-value" in refusal(capsys, "--cmdlog-path", "/log", "--max-value", value)


def test_unknown_option_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--cmdlog-size" in refusal(capsys, "--cmdlog-path", "/log", "--cmdlog-size", "1")
    file.write_text("cmdlog_size = 1\n")
    said = refusal(capsys, "--cmdlog-path", "/log", "--config", str(file))
    assert str(file) in said
    assert "cmdlog_size" in said
    assert "did you mean cmdlog_seg_size?" in said
    file.write_text("colour = 1\n")
    said = refusal(capsys, "--cmdlog-path", "/log", "--config", str(file))
    assert "there are: listen, " in said, "what is allowed"


def test_arguments_without_an_option_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "surplus" in refusal(capsys, "--cmdlog-path", "/log", "surplus")


def test_missing_log_directory_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--cmdlog-path" in refusal(capsys)


def test_address_is_needed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('cmdlog_path = "/log"\nlisten = []\n')
    assert "listen" in refusal(capsys, "--config", str(file))


NOT_TOML = {
    "no value": b"max_value = ",
    "no name": b"= 3",
    "not UTF-8": b"\xff\xfe",
    "twice": b"a = 1\na = 2\n",
    "nested too deep": b"a = " + b"[" * 5000,
    "a number of many digits": b"max_value = " + b"1" * 5000,
    "NUL in a path": b'tls_cert = "\\u0000"\n',
    "NUL in an address": b'listen = ["a", "unix:/\\u0000"]\n',
}


@pytest.mark.parametrize("content", NOT_TOML.values(), ids=NOT_TOML)
def test_file_that_is_not_toml_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file.write_bytes(content)
    said = refusal(capsys, "--cmdlog-path", "/log", "--config", str(file))
    assert str(file) in said


def test_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        said = refusal(capsys, "--cmdlog-path", "/log", "--config", str(path))
        assert str(path) in said
        assert "cannot read" in said


def test_snapshots_go_below_the_log_unless_told_otherwise() -> None:
    config = Config(cmdlog_path="/var/lib/x")
    assert config.snapshot_directory == "/var/lib/x/snapshots"
    config.snapshot_dir = "elsewhere"
    assert Path(config.snapshot_directory) == Path("elsewhere").absolute()


@pytest.mark.parametrize(
    "flags",
    [
        {"archive_bytes_max": 1 << 30},
        {"archive_dir": "/archive", "archive_bytes_max": 1000},
        {"archive_dir": "/log/."},
        {"archive_dir": "/log/snapshots"},
    ],
)
def test_archive_that_could_hold_nothing_or_has_no_place_of_its_own_is_refused(
    flags: dict[str, object],
) -> None:
    with pytest.raises(ConfigError, match="--archive-"):
        load_config(None, {"cmdlog_path": "/log", **flags})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"remote_log": "http://host/log"}, "--remote-log http://host/log is no URL of an object"),
        ({"remote_log": "bucket"}, "--remote-log bucket is no URL of an object store"),
        ({"remote_log": "file:///store", "repair": True}, "--repair with --remote-log: "),
        (
            {"remote_log": "file:///store", "takeover_after": 3, "remote_poll": 2000},
            "--takeover-after 3: less than two times --remote-poll (give at least 4)",
        ),
    ],
)
def test_remote_log_that_cannot_work_is_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"cmdlog_path": "/log", **flags})
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["cmdlog_path", "snapshot_dir", "archive_dir"])
def test_uri_is_no_directory_of_a_log(name: str) -> None:
    option = "--" + name.replace("_", "-")
    flags = {"cmdlog_path": "/log"} | {name: "s3://bucket/log"}
    with pytest.raises(ConfigError, match=f"^{option} s3://bucket/log: a URI, and no path"):
        load_config(None, flags)


def test_engine_gets_its_options_in_its_units() -> None:
    flags = {"cmdlog_path": "/log", "default_lease": 3, "tombstone_ttl": 4, "max_clock_skew": 5}
    settings = load_config(None, flags).settings()
    assert settings.lease_us_default == 3_000_000
    assert settings.tombstone_ttl_us == 4_000_000
    assert settings.clock_skew_us_max == 5_000_000
    assert load_config(None, flags | {"max_postpone": 6}).settings().postpone_us_max == 6_000_000
    assert load_config(None, {"cmdlog_path": "/log"}).settings() == type(settings)()


def test_last_attempt_by_default_begins_15_to_25_days_after_the_first_one_failed() -> None:
    settings = load_config(None, {"cmdlog_path": "/log"}).settings()
    first, longest = settings.retry_delay_us, settings.retry_delay_us_max
    delays = [exponential_backoff(first, longest, tries) for tries in range(24)]
    assert settings.attempts_max == len(delays) + 1
    assert sum(delays) == 1_817_343_000_000
    assert 15 <= sum(delays) / 86_400_000_000 <= 25


def test_max_attempts_of_0_means_never() -> None:
    assert (
        load_config(None, {"cmdlog_path": "/log", "max_attempts": 0}).settings().attempts_max == 0
    )


def test_value_over_what_workq_takes_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    start("--cmdlog-path", "/log", "--max-value", "1000000")
    assert "workq" not in caplog.text
    start("--cmdlog-path", "/log", "--max-value", "1000001")
    assert "workq" in caplog.text


def test_config_check_prints_one_line_for_each_error(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        'max_connections = -1\nmax_attempts = -5\nlisten = ["a", "127.0.0.1:x"]\ncolour = 1\n'
        'tls_cert = "/cert"\narchive_bytes_max = 9\nhttp = "10.0.0.1"\nlog_level = 3\n'
        'snapshot_dir = "\\u0000"\ndefault_interval = 0.0000004\nauth_tokens = "/none"\n'
        f'ready_file = "{tmp_path}/missing/ready"\n'
    )
    said = refusal(capsys, "--config", str(file), "--default-jobs", "-1", "--check-config")
    lines = said.splitlines()
    for word in (
        *("max_connections: ", "max_attempts: ", "--listen a: ", "--listen 127.0.0.1:x: "),
        "(the port is missing: write a:PORT)",
        *("colour: no such option", "--tls-cert without --tls-key", "--cmdlog-path DIR is missing"),
        *("--http 10.0.0.1: ", "log_level: ", "snapshot_dir: it has a NUL", "/none: "),
        *("--default-interval 4e-07: ", "--ready-file: ", "--default-jobs: "),
    ):
        assert len([line for line in lines if word in line]) == 1, (word, said)
    # a limit of an archive is no second error while the directories are not known
    assert len(lines) == 14, said


def test_config_check_of_wrong_options_that_need_each_other_says_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ("--cmdlog-path", str(tmp_path), "--check-config")
    for arguments, word in (
        (("--tls-key", "/key", "--listen", "0.0.0.0:1"), "--tls-key without --tls-cert"),
        (("--tls-client-ca", "/ca"), "--tls-client-ca without"),
        (("--archive-bytes-max", "9"), "--archive-bytes-max without"),
        (("--archive-dir", str(tmp_path)), "this is --cmdlog-path"),
    ):
        (line,) = refusal(capsys, *log, *arguments).splitlines()
        assert word in line


def test_example_file_of_the_service_is_valid() -> None:
    example = Path(__file__).parents[2] / "systemd" / "fastjournald.toml.example"
    text = re.sub(r"(?m)^#\s?(?=\w+ = )", "", example.read_text())
    assert text.count(" = ") >= 3

    msgspec.convert(tomllib.loads(text), Config)


def test_memory_limit_counts_the_program_itself() -> None:
    def entries_may_take(limit: int) -> int:
        return Config(cmdlog_path="/log", memory_limit=limit).settings().memory_bytes_max

    assert entries_may_take(0) == 0, "no limit"
    assert entries_may_take(10**9) == 10**9 - PROGRAM_BYTES
    assert entries_may_take(PROGRAM_BYTES) == entries_may_take(1) == 1, "nothing stays"


def test_interrupt_during_recovery_is_no_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastjournald.main._run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["--cmdlog-path", "/var/log-a"])
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("request-timeout", "10s", "give a whole number of seconds, without a unit"),
        ("cmdlog-sync-int", "1s", "give a whole number of milliseconds, without a unit"),
        ("max-inflight", "1MB", "give a whole number of bytes, without a unit"),
        ("default-interval", "2s", "give a number of seconds, without a unit"),
        ("max-attempts", "three", "give a whole number"),
    ],
)
def test_config_refuses_a_number_with_a_unit_and_names_the_unit_of_the_option(
    file: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, advice: str
) -> None:
    file.write_text(f'{option.replace("-", "_")} = "{value}"\n')
    for words in ([f"--{option}", value], ["--config", str(file)]):
        with pytest.raises(SystemExit) as ended:
            main(["--cmdlog-path", "/log", *words])
        assert ended.value.code == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert advice in line
        assert option in line.replace("_", "-")
