"""Options of the daemon: one struct, filled from a TOML file and from the command line.

Names in the file equal the attributes here; on the command line ``_`` is ``-``, and flags win.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fastjournal import limits
from fastjournal.loglines import LogFormat
from fastjournald.engine.context import Settings

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
