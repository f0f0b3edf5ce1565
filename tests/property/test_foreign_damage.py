"""Damage of foreign journals: any cut and any flipped bytes end in named places."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastjournal.foreign import open_beanstalkd, open_kestrel
from fastjournal.testing.disk import SimulatedDisk

CORPUS = Path(__file__).parent.parent / "format" / "data"
LOG = "/log"
ROUNDS = 60
OPENERS = {"kestrel": open_kestrel, "beanstalkd": open_beanstalkd}
JOURNALS = [
    "kestrel/one-file",
    "kestrel/state-dump-of-20",
    "kestrel/two-packs",
    "beanstalkd/killed",
    "beanstalkd/stopped-v5",
]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a file cut at random, or with some bytes changed, or both."""
    out = bytearray(data)
    if chance.random() < 0.4:
        del out[chance.randrange(len(out) + 1) :]
    for _ in range(chance.randrange(4) if out else 0):
        at = chance.randrange(len(out))
        out[at] = chance.choice((0, 1, 7, 8, 0x7F, 0xFF, out[at] ^ 1 << chance.randrange(8)))
    if chance.random() < 0.2:
        out += chance.randbytes(chance.randrange(200))
    return bytes(out)


@pytest.mark.parametrize("name", JOURNALS)
def test_damage_of_journals_leaves_items_and_places_inside_the_files(name: str) -> None:
    files = {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
    chance = random.Random(name)
    faults = 0
    for _ in range(ROUNDS):
        victims = set(chance.sample(sorted(files), 1 + chance.randrange(2) % len(files)))
        disk, sizes = SimulatedDisk(), {}
        disk.mkdir(LOG)
        for file, content in files.items():
            data = damaged(content, chance) if file in victims else content
            sizes[f"{LOG}/{file}"] = len(data)
            disk.create(f"{LOG}/{file}").write(data)
        with OPENERS[name.partition("/")[0]](disk, LOG) as journal:
            items = list(journal.items())
            assert len(items) == journal.count
            assert len({item.key for item in items}) == len(items)
            for fault in journal.faults:
                assert 0 <= fault.offset <= sizes[fault.path]
                assert fault.message
            faults += len(journal.faults)
            for item in items:
                assert item.timestamp >= 1
                assert item.offset + len(item.value) <= sizes[item.path]
    assert faults > ROUNDS / 4
