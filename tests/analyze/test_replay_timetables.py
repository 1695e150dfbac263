"""Nodes that lose work at a strict period since the first rows, as for checkpoints and evaluations."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_analyze.replay.timetables import timetable
from ingero_testing.replays import shown_twice

Rates = npt.NDArray[np.float64]


def healthy() -> Rates:
    return np.asarray(100 * np.exp(0.02 * np.random.default_rng(5).normal(size=(400, 12))))


def with_evaluations(rates: Rates, first: int = 7) -> Rates:
    """Nodes n3 and n8 lose half of their rate for four ticks, every 40 of them."""
    for tick in range(first, len(rates), 40):
        rates[tick : tick + 4, [3, 8]] *= 0.5
    return rates


def written(folder: Path, rates: Rates) -> str:
    rows = (f"{30 * tick},n{node},{rates[tick, node]:.4f}\n" for tick, node in np.ndindex(rates.shape))
    (folder / "history.csv").write_text("time,node,rate\n" + "".join(rows))
    return str(folder / "history.csv")


def test_losses_at_a_strict_period_accuse_nobody(tmp_path: Path) -> None:
    found, table = shown_twice(written(tmp_path, with_evaluations(healthy())))

    assert found["episodes"] == []
    assert [(one["node"], one["times"], one["length"]) for one in found["summary"]["timetables"]] == [
        ("n3", 10, 120), ("n8", 10, 120),
    ]  # fmt: skip
    assert all(abs(one["period"] - 1200) < 30 for one in found["summary"]["timetables"])
    assert "2 nodes lose work at a strict period since the first rows" in table.stdout
    assert found["summary"]["silent"]["ended"]["count"] == 0


@pytest.mark.parametrize("loss", [0.2, 0.3, 1.0])
def test_a_fault_beside_them_is_accused(tmp_path: Path, loss: float) -> None:
    rates = with_evaluations(healthy())
    rates[215:, 3] *= 1 - loss

    found, _ = shown_twice(written(tmp_path, rates))

    [episode] = found["episodes"]
    assert (episode["node"], episode["end"]) == ("n3", None)
    assert abs(episode["start"] - 30 * 215) <= 90
    assert abs(episode["severity"] - loss) < 0.05


def test_losses_that_begin_later_are_faults(tmp_path: Path) -> None:
    found, _ = shown_twice(written(tmp_path, with_evaluations(healthy(), first=127)))

    assert {episode["node"] for episode in found["episodes"]} == {"n3", "n8"}
    assert found["summary"]["timetables"] == []


def losses(begins: npt.ArrayLike, ticks: int = 600) -> Rates:
    off = 0.02 * np.random.default_rng(2).normal(size=ticks)
    for begin in np.asarray(begins, np.int64).tolist():
        off[begin : begin + 3] -= 0.5
    return off


def test_a_period_of_a_fraction_of_ticks_is_followed() -> None:
    begins = np.arange(9, 590, 16.67)

    found = timetable(np.arange(600), losses(begins))

    assert found is not None
    assert abs(found.period - 16.67) < 0.2
    assert np.isin(begins.astype(np.int64), found.ticks()).all()


def test_losses_at_times_of_their_own_keep_no_timetable() -> None:
    rng = np.random.default_rng(4)
    kept = [timetable(np.arange(600), losses(rng.choice(590, size=count))) for count in (4, 8, 12, 20) * 25]

    assert sum(one is not None for one in kept) <= 1
