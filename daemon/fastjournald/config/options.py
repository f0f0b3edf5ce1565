"""Options of the daemon: one struct, filled from a TOML file and from the command line.

Names in the file equal the attributes here; on the command line ``_`` is ``-``, and flags win.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fastjournal import limits
from fastjournal.errors import ConfigError
from fastjournal.loglines import LogFormat
from fastjournald.config.addresses import Tcp, address_text, parse_place
from fastjournald.config.command_line import OPTIONS, Number
from fastjournald.config.handed_over import NOTHING, HandedOver
from fastjournald.engine.settings import Settings

# Upper bounds leave all arithmetic in 64 bits, and room for any sane use.
SECONDS_MAX = 1_000_000_000
"""About 30 years: instants stay u64 for half a million years."""
MILLISECONDS_MAX = 86_400_000
"""A day between two syncs, or two looks at the log."""
BYTES_MAX = 2**50
"""1 PiB."""
SEGMENT_BYTES_MAX = 2**36
"""64 GiB: offsets have 40 bits, and a batch may go beyond the size."""
NUMBER_MAX = 1_000_000_000
PROGRAM_BYTES = 56 * 1024 * 1024
"""Part of memory-limit for the program itself: 37 MiB without any entry, and a usual load in
flight."""

HINTS = {
    str(option.name): option.type.hint for option in OPTIONS if isinstance(option.type, Number)
}
"""Advice for options that are numbers."""

Seconds = Annotated[int, Meta(ge=0, le=SECONDS_MAX)]
SecondsNotNone = Annotated[int, Meta(ge=1, le=SECONDS_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=BYTES_MAX)]


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of an administrator. Sizes are bytes; other units are in the descriptions."""

    cmdlog_path: str = ""
    listen: list[str] = msgspec.field(default_factory=lambda: ["127.0.0.1:9923"])
    ready_file: str = ""
    socket_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "0660"
    """Permissions of unix sockets, octal."""
    tls_cert: str = ""
    """With ``tls_key``: TCP connections speak TLS. PEM files."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """Clients need a certificate that one of these authorities has signed."""
    auth_tokens: str = ""
    """File of tokens; empty: clients need none."""
    auth_timeout: SecondsNotNone = limits.AUTH_SECONDS
    """Seconds until AUTH."""
    insecure: bool = False
    cmdlog_sync: Literal["always", "interval", "os"] = "always"
    cmdlog_sync_int: Annotated[int, Meta(ge=1, le=MILLISECONDS_MAX)] = 1000
    """Milliseconds."""
    cmdlog_clean_int: Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)] = 300_000
    """Milliseconds."""
    cmdlog_seg_size: Annotated[int, Meta(ge=4096, le=SEGMENT_BYTES_MAX)] = limits.SEGMENT_BYTES_MAX
    max_value: Annotated[int, Meta(ge=1, le=limits.VALUE_BYTES_LIMIT)] = limits.VALUE_BYTES_MAX
    max_reply: Annotated[int, Meta(ge=4096, le=2**30)] = limits.REPLY_BYTES_MAX
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.CONNECTIONS_MAX
    max_inflight: Annotated[int, Meta(ge=65_536, le=BYTES_MAX)] = limits.INFLIGHT_BYTES_MAX
    request_timeout: SecondsNotNone = limits.REQUEST_SECONDS_MAX
    """Seconds."""
    send_timeout: SecondsNotNone = limits.SEND_SECONDS_MAX
    """Seconds."""
    idle_timeout: Seconds = limits.IDLE_SECONDS_MAX
    """Seconds; 0: without end."""
    memory_limit: Bytes = 0
    """0: none."""
    min_free_bytes: Bytes = limits.MIN_FREE_BYTES
    default_lease: SecondsNotNone = limits.LEASE_US_DEFAULT // 1_000_000
    """Seconds."""
    max_attempts: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    retry_delay: Seconds = limits.RETRY_DELAY_US // 1_000_000
    """Seconds."""
    retry_delay_max: Seconds = limits.RETRY_DELAY_US_MAX // 1_000_000
    """Seconds."""
    default_interval: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] = 0
    """Seconds, also fractions, between two deliveries of a domain without LIMIT; 0: none."""
    default_jobs: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    """Leased entries of a domain without LIMIT; 0: any number."""
    tombstone_ttl: Seconds = limits.TOMBSTONE_TTL_US // 1_000_000
    """Seconds."""
    tombstones_max: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] = limits.TOMBSTONES_MAX
    tombstones_bytes_max: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] = limits.TOMBSTONES_BYTES_MAX
    max_clock_skew: Seconds = limits.CLOCK_SKEW_US_MAX // 1_000_000
    """Seconds."""
    max_postpone: Seconds = limits.POSTPONE_US_MAX // 1_000_000
    """Seconds."""
    snapshot_dir: str = ""
    archive_dir: str = ""
    """Empty: off."""
    archive_bytes_max: Bytes = 0
    """0: any size."""
    repair: bool = False
    http: str = ""
    """Empty: off."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"

    @property
    def snapshot_directory(self) -> str:
        """Directory of snapshots, absolute, because replies show it to clients."""
        return os.path.abspath(self.snapshot_dir or os.path.join(self.cmdlog_path, "snapshots"))

    def settings(self) -> Settings:
        """Return the engine's part, in its units."""
        return Settings(
            value_bytes_max=self.max_value,
            reply_bytes_max=self.max_reply,
            lease_us_default=self.default_lease * 1_000_000,
            attempts_max=self.max_attempts,
            retry_delay_us=self.retry_delay * 1_000_000,
            retry_delay_us_max=self.retry_delay_max * 1_000_000,
            interval_us_default=round(self.default_interval * 1_000_000),
            jobs_default=self.default_jobs,
            tombstone_ttl_us=self.tombstone_ttl * 1_000_000,
            tombstones_max=self.tombstones_max,
            tombstones_bytes_max=self.tombstones_bytes_max,
            clock_skew_us_max=self.max_clock_skew * 1_000_000,
            postpone_us_max=self.max_postpone * 1_000_000,
            memory_bytes_max=self.memory_limit and max(1, self.memory_limit - PROGRAM_BYTES),
        )


def load_config(
    file: str | None, flags: dict[str, object], handed_over: HandedOver = NOTHING
) -> Config:
    """Return the options of a TOML file with those of the command line over them.

    Args:
        file: Path of the file; None: there is none.
        flags: Options of the command line, by attribute name.
        handed_over: Sockets of the service manager: their addresses are added to ``listen``, or
            take the place of its default, and of ``http``.

    Raises:
        ConfigError: The file cannot be read, or an option is unknown or has a bad value.
    """
    given: dict[str, object] = {}
    if file is not None:
        try:
            given = tomllib.loads(Path(file).read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read: {error.strerror}", path=file) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"not TOML: {error}", path=file) from error
        except RecursionError:
            raise ConfigError("not TOML that can be read: nested too deep", path=file) from None
        _convert(given, file)
    options = given | flags
    config = _convert(options, None)
    _add_handed_over(config, handed_over, listens="listen" in options)
    if not config.cmdlog_path:
        raise ConfigError("--cmdlog-path DIR is missing", hint="name the directory of the log")
    if not config.listen:
        raise ConfigError("--listen: at least one address is needed")
    _check_interval(config)
    _check_archive(config)
    _check_http(config)
    _check_access(config, handed_over)
    return config


def _add_handed_over(config: Config, handed_over: HandedOver, *, listens: bool) -> None:
    """Put the addresses of the service manager's sockets into the options."""
    given = config.listen if listens or not handed_over.listen else []
    places = [parse_place(text) for text in given]
    added = [address_text(place) for place in handed_over.listen if place not in places]
    config.listen = [*given, *added]
    for place in handed_over.http:
        if config.http and parse_place(config.http, "--http") != place:
            raise ConfigError(
                f"--http {config.http}: the service manager listens on {address_text(place)}",
                hint="name the same address, or none",
            )
        config.http = address_text(place)


def _check_interval(config: Config) -> None:
    """Refuse a limit that would be none."""
    if config.default_interval and not config.settings().interval_us_default:
        raise ConfigError(
            f"--default-interval {config.default_interval:g}: it rounds to 0 microseconds",
            hint="give 0 for none, or 0.000001 or more",
        )


def _check_archive(config: Config) -> None:
    """Refuse an archive that could hold nothing, or whose files would stand among others."""
    if not config.archive_dir:
        if config.archive_bytes_max:
            raise ConfigError("--archive-bytes-max without --archive-dir")
        return
    if 0 < config.archive_bytes_max < config.cmdlog_seg_size:
        raise ConfigError(
            f"--archive-bytes-max {config.archive_bytes_max}: less than one segment",
            hint=f"give 0 for no bound, or at least --cmdlog-seg-size, {config.cmdlog_seg_size}",
        )
    for option, path in (
        ("--cmdlog-path", config.cmdlog_path),
        ("--snapshot-dir", config.snapshot_directory),
    ):
        if os.path.realpath(path) == os.path.realpath(config.archive_dir):
            raise ConfigError(
                f"--archive-dir {config.archive_dir}: this is {option}",
                hint="name a directory that only the archive uses",
            )


def _check_http(config: Config) -> None:
    if config.http:
        place = parse_place(config.http, "--http")
        if not isinstance(place, Tcp) or not place.is_loopback:
            raise ConfigError(
                f"--http {config.http}: not HOST:PORT with localhost or a loopback address",
                hint="metrics need no token; a reverse proxy on this machine can ask for one",
            )


def _check_access(config: Config, handed_over: HandedOver) -> None:
    """Refuse what would let everybody in by mistake."""
    if bool(config.tls_cert) != bool(config.tls_key):
        there, missing = "--tls-cert", "--tls-key"
        if config.tls_key:
            there, missing = missing, there
        raise ConfigError(f"{there} without {missing}", hint="give both, or none")
    if config.tls_client_ca and not config.tls_cert:
        raise ConfigError(
            "--tls-client-ca without --tls-cert and --tls-key", hint="give all three, or none"
        )
    for text in exposed_addresses(config):
        if not (config.tls_cert or config.auth_tokens or config.insecure):
            where = "LISTEN_FDS" if parse_place(text) in handed_over.listen else "--listen"
            raise ConfigError(
                f"{where} {text}: other machines could read and change everything there",
                hint="give --tls-cert and --tls-key, or --auth-tokens, or both; "
                "or --insecure if that is meant",
            )


def exposed_addresses(config: Config) -> list[str]:
    """Return the addresses that other machines may reach.

    Raises:
        ConfigError: One is no address.
    """
    places = ((text, parse_place(text)) for text in config.listen)
    return [text for text, place in places if isinstance(place, Tcp) and not place.is_loopback]


def _convert(values: dict[str, object], file: str | None) -> Config:
    unknown = sorted(set(values) - set(Config.__struct_fields__))
    if unknown:
        allowed = ", ".join(Config.__struct_fields__)
        raise ConfigError(f"{unknown[0]}: no such option", path=file, hint=f"there are: {allowed}")
    for name, value in values.items():
        texts = value if isinstance(value, list) else [value]
        if any("\0" in text for text in texts if isinstance(text, str)):
            # no path and no address has one
            raise ConfigError(f"{name}: it has a NUL character", path=file, hint="remove that")
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        hint = HINTS.get(name)
        if file is None:
            name = "--" + name.replace("_", "-")
        raise ConfigError(f"{name}: {text}", path=file, hint=hint) from error
