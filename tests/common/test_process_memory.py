"""What stays is left out of the collector's walks a few times, not at every check."""

import gc
from itertools import pairwise

import pytest

from ingero_kit.process_memory import GcFreezer


def test_only_growth_by_a_quarter_leaves_more_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    freezer = GcFreezer()

    frozen = [size for size in range(0, 100_000, 10) if freezer.freeze_if_grown(size)]

    assert len(frozen) < 25
    assert all(later > 1.25 * sooner for sooner, later in pairwise(frozen))
    assert not any(freezer.freeze_if_grown(size) for size in (frozen[-1], 5, 0))
