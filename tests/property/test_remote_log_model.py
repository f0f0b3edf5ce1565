"""Remote log: random walks over the rules of the code, and faults planted in these rules.

FASTJOURNAL_REMOTE_LOG_STEPS=5000000 walks so many steps in each setup instead of the usual number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from fastjournal.errors import FencedError
from fastjournal.remote.checkpoints import adopt
from fastjournal.remote.objects import Epoch
from fastjournal.remote.reader import Append, Candidate, LogReader, Restart, read_to_end, take_over
from fastjournal.remote.store import repeating, run
from fastjournal.remote.writer import ChunkWriter, RemoteAck
from fastjournal.testing.object_store import CruelStore
from tests.property.remote_log_faults import FAULTS
from tests.property.remote_log_world import Limits, Setup, walk

STEPS = int(os.environ.get("FASTJOURNAL_REMOTE_LOG_STEPS", "4000"))
FAULT_STEPS = 150_000
"""Steps after which a planted fault counts as not found."""

SETUPS = {
    "two nodes": Setup(),
    "three nodes": Setup(nodes=3),
    "no sync": Setup(synced=False),
    "async": Setup(ack=RemoteAck.ASYNC),
    "async, no sync, three nodes": Setup(nodes=3, ack=RemoteAck.ASYNC, synced=False),
    "many checkpoints": Setup(limits=Limits(records=12, checkpoints=8, takes=10, starts=16)),
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.timeout(0 if "FASTJOURNAL_REMOTE_LOG_STEPS" in os.environ else 900)
def test_remote_log_loses_nothing_and_has_one_primary(name: str) -> None:
    result = walk(SETUPS[name], STEPS, seed=1 + list(SETUPS).index(name))
    print(name, result.seed, result.walks, result.steps, result.counts)
    assert result.breach is None, (result.breach, result.trace)
    assert min(result.counts[what] for what in ("acks", "checkpoints", "fenced", "epochs")) > 0


@pytest.mark.parametrize("name", FAULTS)
def test_remote_log_walks_find_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    steps, seed = 0, fault.seed
    while steps < FAULT_STEPS:
        result = walk(fault.setup, FAULT_STEPS - steps, seed, fault.world)
        if result.breach is not None:
            return
        steps, seed = steps + result.steps, seed + 1
    pytest.fail(f"not found in {steps} steps")


@pytest.mark.parametrize("seed", range(40))
def test_remote_log_over_a_cruel_store_has_each_acknowledged_batch_once(seed: int) -> None:
    """Requests fail, are carried out all the same, or later, when others have taken over."""
    draw, store = random.Random(seed), CruelStore(seed, failures=0.4)
    perform = repeating(store, lambda _tries, _error: None)
    run(adopt(Epoch(0, "log", "adopter", bytes(16), -1), 1, {}), perform)
    acknowledged: list[bytes] = []
    former: ChunkWriter | None = None
    for number in range(6):
        reader, read = LogReader("log"), []
        answer = collecting(read, perform)
        epoch = run(take_over(reader, Candidate("node", bytes([number]) * 16), number), answer)
        assert epoch is not None
        assert [batch for batch in read if batch in set(acknowledged)] == acknowledged
        if former is not None:
            with pytest.raises(FencedError):
                run(former.store(9, 0, b"fenced", 1), perform)
        writer = ChunkWriter(epoch, reader.end, reader.time_us)
        run(writer.store(0, 0, b"", number), perform)
        for batch in range(draw.randrange(6)):
            content = b"%d.%d" % (number, batch)
            run(writer.store(number + 1, 4 * batch, content, number), perform)
            acknowledged.append(content)
        former = writer
    last: list[bytes] = []
    run(read_to_end(LogReader("log")), collecting(last, perform))
    assert last == acknowledged


def collecting(read: list[bytes], perform: Callable[[Any], object]) -> Callable[[Any], object]:
    def answer(request: Any) -> object:
        if isinstance(request, Append):
            read.append(request.chunk.payload)
            return True
        return read.clear() if isinstance(request, Restart) else perform(request)

    return answer
