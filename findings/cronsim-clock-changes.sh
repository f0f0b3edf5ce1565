#!/usr/bin/env bash
# cronsim: where clocks are set back, the next tick may lie before the start, or ticks are left out.
#
# Versions: cronsim 2.8, tzdata 2026.6; croniter 7.0.0 beside it.
# Behaviour: Each program asks for the ticks after an instant, with the zone in it, and prints them in
#   UTC. (1) `30 2 * * *` in Berlin, asked at 2:10 for the second time that day (fold=1, 01:10 UTC):
#   cronsim goes on from the local time without its fold, so its first answer, 2:30 for the first
#   time, is 40 minutes in the past. A loop that sleeps until the answer runs such a job twice.
#   croniter answers 2:30 for the second time; asked before the change it gives both.
#   (2) `*/10 2 * * *` on Lord Howe Island, where clocks go back from 2:00 to 1:30: the whole hour 2
#   follows. cronsim sets the minute to 0 within the repeated half hour, which leads to an hour
#   before it, and passes by the first half of hour 2. croniter has all six ticks.
# Output seen:
#   cronsim, Berlin after 2026-10-25T01:10Z: 10-25T00:30 10-26T01:30
#   croniter, Berlin after 2026-10-25T01:10Z: 10-25T01:30 10-26T01:30
#   cronsim, Lord Howe after 2026-04-04T13:00Z: 04-04T16:00 04-04T16:10 04-04T16:20 04-05T15:30
#   croniter, Lord Howe after 2026-04-04T13:00Z: 04-04T15:30 04-04T15:40 04-04T15:50 04-04T16:00
# Needs: bash, python3 of at least 3.11, PyPI. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet cronsim==2.8 croniter==7.0.0 tzdata==2026.6
cat >ticks.py <<'PYTHON'
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

CASES = [
    ("Berlin", "Europe/Berlin", "30 2 * * *", datetime(2026, 10, 25, 1, 10, tzinfo=UTC), 2),
    ("Lord Howe", "Australia/Lord_Howe", "*/10 2 * * *", datetime(2026, 4, 4, 13, tzinfo=UTC), 4),
]
for place, zone, line, start, number in CASES:
    local = start.astimezone(ZoneInfo(zone))
    for name, ticks in (
        ("cronsim", CronSim(line, local)),
        ("croniter", croniter(line, local, ret_type=datetime)),
    ):
        shown = [f"{tick.astimezone(UTC):%m-%dT%H:%M}" for tick in islice(ticks, number)]
        print(f"{name}, {place} after {start:%Y-%m-%dT%H:%M}Z: {' '.join(shown)}")
PYTHON
PYTHONTZPATH="" venv/bin/python ticks.py | tee output
diff output - <<'EXPECTED'
cronsim, Berlin after 2026-10-25T01:10Z: 10-25T00:30 10-26T01:30
croniter, Berlin after 2026-10-25T01:10Z: 10-25T01:30 10-26T01:30
cronsim, Lord Howe after 2026-04-04T13:00Z: 04-04T16:00 04-04T16:10 04-04T16:20 04-05T15:30
croniter, Lord Howe after 2026-04-04T13:00Z: 04-04T15:30 04-04T15:40 04-04T15:50 04-04T16:00
EXPECTED
