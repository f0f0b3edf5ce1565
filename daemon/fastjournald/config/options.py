"""Options of the daemon: one struct, filled from a TOML file and from the command line.

An attribute is the one declaration of an option: name, type, bounds, default, unit and help. Flags,
checks, the example file and the reference follow from it. Names in the file equal the attributes;
on the command line ``_`` is ``-``, and flags win.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from fastjournal import limits
from fastjournal.loglines import LogFormat, LogLevel
from fastjournald.engine.context import Settings

# Upper bounds leave all arithmetic in 64 bits, and room for any sane use.
SECONDS_MAX = 1_000_000_000
"""About 30 years: instants stay u64 for half a million years."""
MILLISECONDS_MAX = 86_400_000
"""A day between two syncs, or two checks of the log."""
BYTES_MAX = 2**50
"""1 PiB."""
SEGMENT_BYTES_MAX = 2**36
"""64 GiB: offsets have 40 bits, and a batch may go beyond the size."""
NUMBER_MAX = 1_000_000_000
PROGRAM_BYTES = 56 * 1024 * 1024
"""Part of memory-limit for the program itself: 37 MiB without any entry, and a usual load in
flight."""

UNITS: Final = {"MS": "milliseconds", "BYTES": "bytes", "S": "seconds"}
"""Units of numbers, by the placeholder of the value in the help."""


def about(help: str, *, shown: str | None = None) -> Meta:
    """Return the help of an option for its type.

    Args:
        help: It.
        shown: End of the help; None: the default in brackets, or ``[off]`` for an empty one.
    """
    return Meta(description=help, extra={"shown": shown})


def _of(unit: str, **bounds: Any) -> Meta:
    """Return bounds and the placeholder of the value in the help."""
    return Meta(extra={"unit": unit}, **bounds)


Seconds = Annotated[int, _of("S", ge=0, le=SECONDS_MAX)]
SecondsNotNone = Annotated[int, _of("S", ge=1, le=SECONDS_MAX)]
Bytes = Annotated[int, _of("BYTES", ge=0, le=BYTES_MAX)]
File = Annotated[str, _of("FILE")]
Directory = Annotated[str, _of("DIR")]


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of an administrator, in the order of the help."""

    listen: Annotated[
        list[str],
        _of("HOST:PORT|unix:PATH"),
        about("Address to listen on, repeatable; port 0 picks one."),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:9923"])
    ready_file: Annotated[
        str,
        _of("PATH"),
        about("File written when requests are accepted: one bound address a line.", shown=""),
    ] = ""
    cmdlog_path: Annotated[Directory, about("Directory of the command log.", shown="Required.")] = (
        ""
    )
    cmdlog_sync: Annotated[
        Literal["always", "interval", "os"],
        about("Sync of the log: before each OK, each interval, or by the system."),
    ] = "always"
    cmdlog_sync_int: Annotated[
        int, _of("MS", ge=1, le=MILLISECONDS_MAX), about("Interval of the sync policy interval.")
    ] = 1000
    cmdlog_clean_int: Annotated[
        int, _of("MS", ge=0, le=MILLISECONDS_MAX), about("Interval of log compaction; 0: none.")
    ] = 300_000
    cmdlog_seg_size: Annotated[
        int, _of("BYTES", ge=4096, le=SEGMENT_BYTES_MAX), about("Size of a log segment.")
    ] = limits.SEGMENT_BYTES_MAX
    max_value: Annotated[
        int, _of("BYTES", ge=1, le=limits.VALUE_BYTES_LIMIT), about("Largest value.")
    ] = limits.VALUE_BYTES_MAX
    max_reply: Annotated[
        int, _of("BYTES", ge=4096, le=2**30), about("Largest reply of several entries.")
    ] = limits.REPLY_BYTES_MAX
    socket_mode: Annotated[
        str, _of("OCTAL", pattern="^0?[0-7]{3}$"), about("Mode of unix sockets.")
    ] = "0660"
    tls_cert: Annotated[File, about("Certificate chain (PEM); TCP connections use TLS.")] = ""
    tls_key: Annotated[File, about("Key of the certificate, mode 0600 or 0640.", shown="")] = ""
    tls_client_ca: Annotated[
        File, about("Authorities whose certificates clients need (mutual TLS).")
    ] = ""
    auth_tokens: Annotated[
        File, about("Tokens and their rights, mode 0600: clients need AUTH.")
    ] = ""
    auth_timeout: Annotated[SecondsNotNone, about("Longest time of a client until AUTH.")] = (
        limits.AUTH_SECONDS
    )
    insecure: Annotated[
        bool, about("Allow addresses that other machines reach without TLS and tokens.")
    ] = False
    max_connections: Annotated[
        int, _of("N", ge=1, le=1_000_000), about("Connections at once; more get busy.")
    ] = limits.CONNECTIONS_MAX
    max_inflight: Annotated[
        int, _of("BYTES", ge=65_536, le=BYTES_MAX), about("Memory of all connections.")
    ] = limits.INFLIGHT_BYTES_MAX
    request_timeout: Annotated[
        SecondsNotNone, about("Time from first to last byte of a request.")
    ] = limits.REQUEST_SECONDS_MAX
    send_timeout: Annotated[SecondsNotNone, about("Time until a client reads of its replies.")] = (
        limits.SEND_SECONDS_MAX
    )
    idle_timeout: Annotated[Seconds, about("Time without requests; 0: no limit.")] = (
        limits.IDLE_SECONDS_MAX
    )
    memory_limit: Annotated[
        Bytes, about("Memory limit: more values are on the disk only; 0: no limit.")
    ] = 0
    min_free_bytes: Annotated[Bytes, about("Free space; read-only with less.")] = (
        limits.MIN_FREE_BYTES
    )
    default_lease: Annotated[SecondsNotNone, about("Lease of a NEXT without a timeout.")] = (
        limits.LEASE_US_DEFAULT // 1_000_000
    )
    max_attempts: Annotated[
        int, _of("N", ge=0, le=0xFFFF), about("Failed attempts until buried; 0: never.")
    ] = limits.ATTEMPTS_MAX
    retry_delay: Annotated[Seconds, about("Delay after a first failed attempt; doubles.")] = (
        limits.RETRY_DELAY_US // 1_000_000
    )
    retry_delay_max: Annotated[Seconds, about("Longest delay after a failed attempt.")] = (
        limits.RETRY_DELAY_US_MAX // 1_000_000
    )
    default_interval: Annotated[
        float,
        _of("S", ge=0, le=SECONDS_MAX),
        about("Least time between two deliveries of a domain without LIMIT; 0: none."),
    ] = 0
    default_jobs: Annotated[
        int,
        _of("N", ge=0, le=NUMBER_MAX),
        about("Most leased entries of a domain without LIMIT; 0: no limit."),
    ] = 0
    tombstone_ttl: Annotated[Seconds, about("Time that tombstones of deletions stay.")] = (
        limits.TOMBSTONE_TTL_US // 1_000_000
    )
    tombstones_max: Annotated[
        int, _of("N", ge=1, le=NUMBER_MAX), about("Number of tombstones at most.")
    ] = limits.TOMBSTONES_MAX
    tombstones_bytes_max: Annotated[
        int, _of("BYTES", ge=1, le=NUMBER_MAX), about("Memory of tombstones at most.")
    ] = limits.TOMBSTONES_BYTES_MAX
    max_clock_skew: Annotated[Seconds, about("Most time a client's clock is ahead.")] = (
        limits.CLOCK_SKEW_US_MAX // 1_000_000
    )
    max_postpone: Annotated[Seconds, about("Most delay that SETs add to a URI; 0: any.")] = (
        limits.POSTPONE_US_MAX // 1_000_000
    )
    snapshot_dir: Annotated[
        Directory, about("Directory of snapshots.", shown="[<cmdlog-path>/snapshots]")
    ] = ""
    archive_dir: Annotated[
        Directory, about("Sealed segments are linked there before the log is cleaned.")
    ] = ""
    archive_bytes_max: Annotated[Bytes, about("Beyond it, the oldest go; 0: any size.")] = 0
    remote_log: Annotated[
        str,
        _of("URL"),
        about("Object store of the log: OK means that it is stored there, too; others take over."),
    ] = ""
    remote_ack: Annotated[
        Literal["durable", "async"],
        about("What OK means: in the log and stored; or in the log, and stored later."),
    ] = "durable"
    remote_lag_bytes_max: Annotated[
        Bytes, about("With async: writers are slowed while so much is not stored.")
    ] = limits.REMOTE_LAG_BYTES_MAX
    remote_interval: Annotated[
        int, _of("MS", ge=0, le=60_000), about("Shortest time between two objects of the log.")
    ] = 0
    remote_poll: Annotated[
        int, _of("MS", ge=10, le=60_000), about("Interval at which a standby reads on.")
    ] = limits.REMOTE_POLL_MS
    takeover_after: Annotated[
        int, _of("S", ge=1, le=86_400), about("Silence after which a standby takes over.")
    ] = limits.TAKEOVER_AFTER_S
    remote_keep: Annotated[
        Seconds, about("Time back to which the remote log can be restored at any instant.")
    ] = limits.REMOTE_KEEP_S
    remote_node: Annotated[
        str, _of("NAME"), about("Name of this node, for people.", shown="[host name]")
    ] = ""
    repair: Annotated[
        bool,
        about("Repair damage in the log: keep the bytes aside, list the losses, and start."),
    ] = False
    http: Annotated[
        str,
        _of("HOST:PORT"),
        about("HTTP address of the page, metrics and health."),
    ] = ""
    log_level: Annotated[
        LogLevel,
        about("Lowest level of log lines on standard error."),
    ] = "info"
    log_format: Annotated[
        LogFormat, about("Form of log lines: text, or one JSON object a line.")
    ] = "text"

    @property
    def snapshot_directory(self) -> str:
        """Directory of snapshots, absolute, because replies show it to clients."""
        return os.path.abspath(self.snapshot_dir or os.path.join(self.cmdlog_path, "snapshots"))

    @property
    def node_name(self) -> str:
        """Name of this node of a remote log."""
        return self.remote_node or socket.gethostname()

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


class DeclaredOption(NamedTuple):
    """Declaration of an option."""

    name: str
    kind: type
    """int, float, bool, str or list."""
    choices: tuple[str, ...]
    """Values of an option of words."""
    bounds: Meta
    """Its ``ge``, ``le`` and ``pattern``."""
    default: Any
    help: str
    unit: str
    shown: str
    """End of the help."""

    @property
    def hint(self) -> str | None:
        """Advice for a value that should be a number, and is none."""
        if self.kind not in (int, float):
            return None
        of_what = f" of {UNITS[self.unit]}, without a unit" if self.unit in UNITS else ""
        return f"give a {'whole ' if self.kind is int else ''}number{of_what}"


def _declared(field: msgspec.structs.FieldInfo) -> DeclaredOption:
    kind, *metas = get_args(field.type)
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    kind = str if choices else get_origin(kind) or kind
    shown = metas[-1].extra["shown"]
    if shown is None and kind is not bool:
        text = ", ".join(default) if kind is list else default
        shown = f"[{'off' if text == '' else text}]"
    return DeclaredOption(
        name=field.name,
        kind=kind,
        choices=choices,
        bounds=metas[0],
        default=default,
        help=metas[-1].description,
        unit=metas[0].extra.get("unit", ""),
        shown=shown or "",
    )


DECLARED: Final = {field.name: _declared(field) for field in msgspec.structs.fields(Config)}
"""Declaration of each option, by its name."""
