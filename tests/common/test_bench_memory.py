"""The bench of idle memory reads what the kernel says, waits until it stands still, and judges by the target."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import memory
from scripts.lab import LabFailed

ROLLUP = """\
55a4c0000000-7ffd0b1c2000 ---p 00000000 00:00 0                          [rollup]
Rss:               40000 kB
Pss:               30000 kB
Pss_Anon:          20000 kB
"""


def test_a_rollup_gives_both_sizes() -> None:
    assert memory.parse_rollup(ROLLUP) == memory.Memory(together=30.72, alone=40.96)

    with pytest.raises(ValueError, match="Pss"):
        memory.parse_rollup(ROLLUP.replace("Pss:", "Other:"))


def reading(*alone: float) -> dict[str, memory.Memory]:
    return {name: memory.Memory(size / 2, size) for name, size in zip(memory.TARGETS, alone, strict=False)}


def test_it_waits_until_every_service_stands_still() -> None:
    found = [reading(10, 50), reading(20, 50), reading(20.1, 51), reading(20.2, 51.1), reading(90, 90)]
    readings: Iterator[dict[str, memory.Memory]] = iter(found)

    assert memory.settled(lambda: next(readings), lambda: None, 10) == found[3]


def test_a_service_that_goes_on_growing_has_no_figure() -> None:
    sizes = iter(range(10, 100, 10))

    with pytest.raises(LabFailed, match="grow"):
        memory.settled(lambda: reading(next(sizes)), lambda: None, 3)


def test_a_target_is_reached_alone_or_beside_the_others_or_not() -> None:
    found = dict.fromkeys(("agent", "sink"), memory.Memory(24.9, 34.9)) | {"Echo": memory.Memory(120, 130)}

    def verdicts(undisturbed: bool) -> list[str]:
        return [line.rsplit("|", 2)[1].strip() for line in memory.rows(found, undisturbed)]

    assert verdicts(undisturbed=True) == ["reached", "reached beside the others", "NOT REACHED"]
    assert verdicts(undisturbed=False) == ["reached", "NOT REACHED", "NOT REACHED"]
