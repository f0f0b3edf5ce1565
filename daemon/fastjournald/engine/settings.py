"""Settings of the engine: bounds and defaults. Pure."""

from __future__ import annotations

import msgspec

from fastjournal import limits


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """Bounds and defaults of the engine; sizes in bytes, times in microseconds."""

    value_bytes_max: int = limits.VALUE_BYTES_MAX
    reply_bytes_max: int = limits.REPLY_BYTES_MAX
    lease_us_default: int = limits.LEASE_US_DEFAULT
    attempts_max: int = 0
    """Lost leases after which an entry is buried; 0: no limit."""
    retry_delay_us: int = limits.RETRY_DELAY_US
    """After the first failed attempt; doubled for each further one."""
    retry_delay_us_max: int = limits.RETRY_DELAY_US_MAX
    interval_us_default: int = 0
    """Least time between two deliveries of a domain; 0: no limit."""
    jobs_default: int = 0
    """Most entries of a domain that are leased at once; 0: no limit."""
    tombstone_ttl_us: int = limits.TOMBSTONE_TTL_US
    tombstones_max: int = limits.TOMBSTONES_MAX
    tombstones_bytes_max: int = limits.TOMBSTONES_BYTES_MAX
    clock_skew_us_max: int = limits.CLOCK_SKEW_US_MAX
    memory_bytes_max: int = 0
    """Bytes of entries in memory, from which on values are evicted; 0: all stay."""
    cold_bytes_min: int = limits.COLD_BYTES_MIN
    """Smaller values stay in memory, and such as ADD and NOT may change."""
    postpone_us_max: int = limits.POSTPONE_US_MAX
    """How far SETs may put off the work on a URI beyond its first due time; 0: no limit."""
