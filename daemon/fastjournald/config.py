"""Options of the daemon: one struct, filled from a TOML file and from the command line.

Names in the file equal the attributes here; on the command line ``_`` is ``-``, and flags win.
"""

from __future__ import annotations

import os
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fastjournal import limits
from fastjournal.errors import ConfigError
from fastjournald.state import Settings

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an administrator can set. Sizes are bytes; units are in the descriptions."""

    cmdlog_path: str = ""
    listen: list[str] = msgspec.field(default_factory=lambda: ["127.0.0.1:9923"])
    ready_file: str = ""
    cmdlog_sync: Literal["always", "interval", "os"] = "always"
    cmdlog_sync_int: Positive = 1000
    """Milliseconds."""
    cmdlog_clean_int: Natural = 300_000
    """Milliseconds."""
    cmdlog_seg_size: Annotated[int, Meta(ge=4096)] = limits.SEGMENT_BYTES_MAX
    max_value: Annotated[int, Meta(ge=1, le=2**32 - 2)] = limits.VALUE_BYTES_MAX
    max_reply: Annotated[int, Meta(ge=4096)] = limits.REPLY_BYTES_MAX
    max_connections: Positive = limits.CONNECTIONS_MAX
    memory_limit: Natural = 0
    min_free_bytes: Natural = limits.MIN_FREE_BYTES
    default_lease: Positive = limits.LEASE_US_DEFAULT // 1_000_000
    """Seconds."""
    max_attempts: Natural = 0
    tombstone_ttl: Natural = limits.TOMBSTONE_TTL_US // 1_000_000
    """Seconds."""
    tombstones_max: Positive = limits.TOMBSTONES_MAX
    max_clock_skew: Natural = limits.CLOCK_SKEW_US_MAX // 1_000_000
    """Seconds."""
    snapshot_dir: str = ""
    repair: bool = False
    http: str = ""
    """Empty: off."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def snapshot_directory(self) -> str:
        """Where snapshots go, absolute: clients are told."""
        return os.path.abspath(self.snapshot_dir or os.path.join(self.cmdlog_path, "snapshots"))

    def settings(self) -> Settings:
        """Return the engine's part, in its units."""
        return Settings(
            value_bytes_max=self.max_value,
            reply_bytes_max=self.max_reply,
            lease_us_default=self.default_lease * 1_000_000,
            attempts_max=self.max_attempts,
            tombstone_ttl_us=self.tombstone_ttl * 1_000_000,
            tombstones_max=self.tombstones_max,
            clock_skew_us_max=self.max_clock_skew * 1_000_000,
        )


def load_config(file: str | None, flags: dict[str, object]) -> Config:
    """Return the options of a TOML file with those of the command line over them.

    Args:
        file: Path of the file; None: there is none.
        flags: What was given on the command line, by attribute name.

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
        _convert(given, file)
    config = _convert(given | flags, None)
    if not config.cmdlog_path:
        raise ConfigError("--cmdlog-path DIR is missing", hint="name the directory of the log")
    if not config.listen:
        raise ConfigError("--listen: at least one address is needed")
    if config.http and not _is_loopback(config.http):
        raise ConfigError(
            f"--http {config.http}: not HOST:PORT with localhost or a loopback address",
            hint="it has no access control; a reverse proxy on this machine can add that",
        )
    return config


def _is_loopback(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        return port.isdecimal() and (
            host == "localhost" or ip_address(host.strip("[]")).is_loopback
        )
    except ValueError:
        return False


def _convert(values: dict[str, object], file: str | None) -> Config:
    unknown = sorted(set(values) - set(Config.__struct_fields__))
    if unknown:
        allowed = ", ".join(Config.__struct_fields__)
        raise ConfigError(f"{unknown[0]}: no such option", path=file, hint=f"there are: {allowed}")
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        if file is None:
            name = "--" + name.replace("_", "-")
        raise ConfigError(f"{name}: {text}", path=file) from error
