"""Parts of ``fastjournald.recovery`` that tests use."""

from __future__ import annotations

from fastjournald.recovery.open_archive import open_archive, try_link
from fastjournald.recovery.recover import (
    begin_anew,
    load_engine,
    recover_engine,
    value_limit,
)
from fastjournald.recovery.scan_worker import ScanWorker, start_scan_worker
