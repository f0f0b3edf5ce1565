"""Parts of ``fastjournald.engine`` that tests use."""

from __future__ import annotations

from fastjournald.engine import engine as engine_module
from fastjournald.engine.authorization import OPEN, RIGHTS, Grant, Grants
from fastjournald.engine.context import Context
from fastjournald.engine.engine import Engine, Missing, Scan, Settings, new_journal
from fastjournald.engine.handlers import next as next_module
from fastjournald.engine.handlers.scan.cursor import (
    DOMAINS,
    EXPRESSION,
    RANGE,
    Cursor,
    decode_cursor,
    encode_cursor,
)
from fastjournald.engine.handlers.table import HANDLERS, VALUE_HANDLERS, Outcome
from fastjournald.engine.job_lifecycle import BURIED_AT_ATTEMPTS_MAX
from fastjournald.engine.key_filter import (
    KeyFilter,
    LongMatches,
    expression_filter,
    literal_prefix,
    prefix_stop,
    range_filter,
    re2_options,
)
from fastjournald.engine.prefetch import missing_notifications, missing_soon
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.engine.pubsub.expression_fan_out import LongMatch
from fastjournald.engine.pubsub.regex_sets import CompiledSet, CompiledSets, SetSearch, memory_of
from fastjournald.engine.pubsub.subscriptions import Subscriptions
from fastjournald.engine.request_counters import UNKNOWN
from fastjournald.engine.store import Store
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply, release_undelivered
from fastjournald.engine.value_memory import evict_values, fill_value
from fastjournald.engine.waiters import DOMAIN_BYTES, WAIT_BYTES
