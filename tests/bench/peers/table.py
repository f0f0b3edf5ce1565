"""All rows of the comparison with peers, in the order of the table."""

from __future__ import annotations

from tests.bench.peers import filled, latency, throughput

ROWS = throughput.ROWS + filled.ROWS + latency.ROWS
