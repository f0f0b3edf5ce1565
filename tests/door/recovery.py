"""Parts of ``fastjournald.recovery`` that tests use."""

from __future__ import annotations

from fastjournald.recovery.recover import load_engine, recover_engine, value_limit
