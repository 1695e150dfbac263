"""Steps that are longer by their data, and those that are by the pause of an operation."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Diagnosis

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline

OPERATIONS = ("attention", "mlp", "mlp backward", "attention backward")


def of_layers(
    rng: np.random.Generator, longer: npt.NDArray[np.float64], layers: int = 2, saves: tuple[int, ...] = ()
) -> Diagnosis:
    """Eight ranks that compute layers and then meet; `longer`: factors by (rank, step, operation).

    In the steps `saves` the first rank writes a checkpoint before they meet.
    """
    ranks, steps, _ = longer.shape
    table, now, rank = Table(), np.zeros(ranks), np.arange(ranks)
    for step in range(steps):
        for number in range(layers * len(OPERATIONS)):
            seconds = 0.01 * longer[:, step, number] * (1 + 0.01 * rng.normal(size=ranks))
            table.add(rank=rank, op=OPERATIONS[number // layers], kind="compute", start=now, duration=seconds,
                      step=step, group="", seq="")  # fmt: skip
            now = now + seconds
        if step in saves:
            table.add(rank=rank[:1], op="save_checkpoint", kind="compute", start=now[:1], duration=np.array([0.1]),
                      step=step, group="", seq="")  # fmt: skip
            now[0] += 0.1
        end = now.max() + 1e-3
        table.add(rank=rank, op="all_reduce", kind="collective", start=now, duration=end - now, step=step,
                  group="all", seq=step)  # fmt: skip
        now = np.full(ranks, end)
    return diagnose(as_timeline(table))


def test_pauses_of_single_operations_on_any_rank_are_no_data() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        longer = np.ones((8, 40, 8))
        for step in range(0, 40, 2):
            longer[rng.integers(8), step, rng.integers(8)] = 3.0

        assert str(of_layers(rng, longer).cause) == "none"


def test_checkpoints_too_few_to_have_a_rhythm_are_no_data() -> None:
    for seed in (5, 7):
        rng = np.random.default_rng(seed)
        longer = np.repeat(np.exp(0.02 * rng.normal(size=(8, 24, 1))), 8, axis=2)

        assert str(of_layers(rng, longer, saves=(9, 19)).cause) == "none"


def test_sequences_and_experts_that_take_longer_in_some_steps_are_data() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for places in (slice(None), slice(2, 6)):
            longer = np.ones((8, 40, 8))
            for step in range(0, 40, 2):
                longer[rng.integers(8), step, places] = 1.5

            assert str(of_layers(rng, longer).cause) == "sequence_imbalance"
