"""Where the module constants and functions stand that tests replace."""

from __future__ import annotations

from typing import Any

import pytest

PLACES = {
    "fastjournal.client.aio.listen": "aio.LISTENER_PING_S",
    "fastjournal.client.core.multiplexer": "CLIENT_IN_FLIGHT_MAX",
    "fastjournal.client.sync.listen": "sync.LISTENER_PING_S",
    "fastjournal.client.sync.sockets": "SOCKET_WAIT_S_MAX",
    "fastjournal.cmdlog.recovery.replay_state": "replay.PAUSED_BYTES_MAX replay.INTERVALS_MAX",
    "fastjournal.limits": "SCANS_MAX SCAN_STEP_WORK limits.REPLIES_BYTES_MAX",
    "fastjournald.admission.turn_budget": "SLICE_WORK",
    "fastjournald.compaction.backpressure": "bytes_slowed",
    "fastjournald.compaction.replace_segment": "WRITTEN_BYTES_MAX _write_pieces",
    "fastjournald.engine.dispatcher": "READY_DOMAINS_MAX SERVED_MAX engine.REPLIES_BYTES_MAX",
    "fastjournald.engine.engine": "ADVANCE_WORK_MAX",
    "fastjournald.engine.handlers.bury_kick": "KICK_ENTRIES_MAX KICK_LOOKS_MAX",
    "fastjournald.engine.handlers.limit": "LIMITED_DOMAINS_MAX LIMITED_BYTES_MAX",
    "fastjournald.engine.handlers.stats": "OLDEST_DUE_LOOKS_MAX",
    "fastjournald.engine.handlers.lock_unlock": "LOCKS_MAX",
    "fastjournald.engine.handlers.next": "WAITS_BYTES_MAX WAITS_MAX",
    "fastjournald.engine.handlers.pause": "PAUSED_DOMAINS_MAX engine.PAUSED_BYTES_MAX",
    "fastjournald.engine.handlers.scan.leasing": "_LEASE_WORK",
    "fastjournald.engine.notifications": """
        CHANGES_STOP_BYTES MATCH_STEPS_MAX NOTIFICATIONS_TURN_BYTES
    """,
    "fastjournald.engine.pubsub.deliveries": """
        NOTIFICATIONS_BYTES_MAX NOTIFICATIONS_BYTES_PER_CONNECTION_MAX
    """,
    "fastjournald.engine.pubsub.expression_fan_out": """
        SEARCH_QUEUE_BYTES_MAX SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX
    """,
    "fastjournald.engine.pubsub.expression_queue": "LONG_MATCHES",
    "fastjournald.engine.pubsub.match_budget": "CHANGES_BYTES_MAX ENDED_EACH MATCH_WORK_MAX",
    "fastjournald.engine.pubsub.notification_queue": "EARLY_DELIVERIES_BYTES_MAX",
    "fastjournald.engine.pubsub.regex_sets": "LONG_MATCH_WORK",
    "fastjournald.engine.pubsub.subscription_limits": """
        SUBSCRIPTIONS_BYTES_MAX SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX SUBSCRIPTIONS_MAX
        SUBSCRIPTIONS_PER_CONNECTION_MAX
    """,
    "fastjournald.engine.pubsub.subscriptions": "SEARCH_AT_ONCE_STEPS",
    "fastjournald.group_commit.commit": "INLINE_SECONDS_MAX WRITE_BYTES_MIN commit.perf_counter",
    "fastjournald.main": "main.OsDisk main._run main._serve",
    "fastjournald.net.connections": "POLLS",
    "fastjournald.net.stream_transport": "STOP_SECONDS",
    "fastjournald.observability.time_slices": "metrics.SLICE_SECONDS",
    "fastjournald.recovery.bulk_load": "LOADED_RUN_KEYS PART_JOBS",
    "fastjournald.server": "STOP_SECONDS_MAX",
    "fastjournald.tables.key_index": "BLOCK_KEYS_MAX BLOCK_KEYS_MIN PART_KEYS_MIN",
    "fastjournald.tables.key_runs": "RUN_KEYS_MAX _TAKEN_KEYS_MIN",
    "fastjournald.tables.key_table": "FRESH_KEYS_MAX GONE_KEYS_MAX",
    "fastjournald.tables.domain_rules": "tables.INTERVALS_MAX tables.INTERVALS_BYTES_MAX",
    "fastjournald.tasks.compactor": "compactor.LOOK_SECONDS",
    "fastjournald.tasks.free_space": "SPACE_SECONDS",
    "fastjournald.tasks.notifier": "MATCH_SLICE_WORK",
    "fastjournald.tasks.snapshots": "snapshots.STOP_SECONDS",
    "fastjournald.tasks.timers": "FULL_COLLECTION_SECONDS FULL_COLLECTION_SECONDS_MAX",
    "fastjournald.wal.live_capture": "RUN_CHANGES RUN_ENTRIES",
}
"""Names by module. A name of two modules, or of no telling word, has a qualifier of its own."""

_MODULE_OF = {name: module for module, names in PLACES.items() for name in names.split()}


def patch_module(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Replace a module constant or function until the test ends.

    Args:
        monkeypatch: The fixture of the test.
        name: As listed in ``PLACES``, with its qualifier.
        value: Stands in its place.
    """
    monkeypatch.setattr(f"{_MODULE_OF[name]}.{name.rpartition('.')[2]}", value)
