"""Tests of the reference of a cohort, and of what a node of a small cohort is compared with."""

from collections.abc import Sequence

import numpy as np
import pytest

from ingero_detect.grouped import Floats, Groups, Ints, Singles
from ingero_detect.reference import Reference, find_reference, of_the_others


def found(values: Singles, accused: Sequence[int], tolerance: float) -> Reference:
    """The reference of one cohort."""
    alone = np.zeros(len(values), np.int32)
    groups = Groups(alone, 1)

    def median(of: Singles | Floats, members: Ints) -> tuple[Floats, Floats]:
        return groups.median_and_upper_quartile(of, slice(None), members)

    known, count = np.isin(np.arange(len(values)), accused), np.array([len(values)])
    return find_reference(values, alone.astype(np.int64), count, known, median, np.array([tolerance]))


def reference(*residuals: float, accused: Sequence[int] = (), tolerance: float = 0.05) -> tuple[float, bool, bool]:
    one = found(np.array(residuals, np.float32), accused, tolerance)
    return float(one.level[0]), bool(one.common[0]), bool(one.partial[0])


def compared_with(*residuals: float, accused: Sequence[int] = (), spread: float = 0.03) -> list[float]:
    """What each node of a cohort is compared with."""
    values = np.array(residuals, np.float32)
    one, known = found(values, accused, 1.0), np.isin(np.arange(len(values)), accused)
    rows, correction = of_the_others(one, values, np.zeros(len(values), np.int64), known, np.array([spread]))
    with_others = np.full(len(values), one.level[0])
    with_others[rows] += correction
    return [float(value) for value in with_others]


def test_a_quarter_that_agrees_with_its_own_history_is_the_reference() -> None:
    level, common, partial = reference(0.0, 0.01, -0.01, *[-1.1] * 7)

    assert (abs(level) < 0.02, common, partial) == (True, False, True)


def test_nodes_that_are_accused_already_define_no_reference_while_enough_others_do() -> None:
    level, common, partial = reference(0.0, 0.01, -0.01, *[-0.28] * 5, accused=(3, 4, 5, 6))

    assert (abs(level) < 0.02, common, partial) == (True, False, False)
    assert reference(0.01, *[-0.28] * 7, accused=range(1, 7))[1]


def test_when_nobody_stayed_the_move_is_common() -> None:
    level, common, partial = reference(-0.7, -0.69, -0.71, -0.7)

    assert (level, common, partial) == (pytest.approx(-0.7, abs=0.01), True, False)


def test_of_two_levels_away_from_zero_the_nearer_one_counts() -> None:
    level, common, _ = reference(-0.2, -0.21, -0.19, -0.2, *[-1.0] * 6)

    assert (level, common) == (pytest.approx(-0.2, abs=0.02), True)


def test_nodes_of_one_level_that_crosses_the_tolerance_are_not_two_parts() -> None:
    """Noise of 10 % around a level that has moved: the part within the tolerance is the upper end of all."""
    residuals = np.linspace(-0.45, -0.15, 12)

    level, common, partial = reference(*residuals, tolerance=0.25)

    assert (level, common, partial) == (pytest.approx(-0.3, abs=0.03), True, False)


def test_a_node_is_compared_with_the_mean_of_the_others() -> None:
    values = [0.01, -0.02, 0.0, 0.02, -0.01]

    assert compared_with(*values) == pytest.approx([(sum(values) - one) / 4 for one in values], abs=1e-6)


def test_a_straggler_hardly_moves_what_the_others_are_compared_with() -> None:
    healthy = [0.01, -0.02, 0.0, 0.02, -0.01, 0.015, -0.005]

    with_it, without = compared_with(*healthy, -2.0), compared_with(*healthy, 0.0)

    assert with_it[-1] == pytest.approx(np.mean(healthy), abs=0.003)
    assert max(abs(one - other) for one, other in zip(with_it[:-1], without[:-1], strict=True)) < 0.045 / 7 + 0.003


def test_nodes_that_are_accused_are_not_among_the_others() -> None:
    healthy = [0.01, -0.02, 0.0, 0.02]

    assert compared_with(*healthy, -0.04, accused=[4]) == pytest.approx(
        [*((sum(healthy) - one) / 3 for one in healthy), sum(healthy) / 4], abs=1e-6
    )


@pytest.mark.parametrize("values", [[0.01, -0.03], [0.01, -0.02, 0.0] * 20, [-2.0, -2.1, -1.9, -2.05]])
def test_of_two_nodes_in_large_cohorts_and_while_a_cohort_moves_the_reference_is_that_of_all(
    values: list[float],
) -> None:
    assert len(set(compared_with(*values))) == 1


@pytest.mark.parametrize(("nodes", "median", "least"), [(8, 0.85, 0.96), (3, 0.63, 0.9)])
def test_a_loss_of_one_node_is_told_from_noise_almost_as_well_as_by_a_mean_of_the_others(
    nodes: int, median: float, least: float
) -> None:
    """Squared mean over variance of what a loss of three deviations looks like, as a share of that of this mean."""
    rng, ticks = np.random.default_rng(3), 20_000
    values = rng.normal(size=(ticks, nodes)).astype(np.float32)
    values[:, 0] -= 3
    cohort = np.repeat(np.arange(ticks), nodes)
    groups, count = Groups(cohort.astype(np.int32), ticks), np.full(ticks, nodes)

    def quartiles(of: Singles | Floats, members: Ints) -> tuple[Floats, Floats]:
        return groups.median_and_upper_quartile(of, slice(None), members)

    flat, none = values.ravel(), np.zeros(nodes * ticks, np.bool_)
    one = find_reference(flat, cohort, count, none, quartiles, np.full(ticks, 5.0))
    rows, correction = of_the_others(one, flat, cohort, none, np.ones(ticks))
    of_all = flat - one.level[cohort]
    shares = [
        gap.reshape(ticks, nodes)[:, 0].mean() ** 2
        / gap.reshape(ticks, nodes)[:, 0].var()
        / (9 / (1 + 1 / (nodes - 1)))
        for gap in (of_all, of_all[rows] - correction)
    ]

    assert shares[0] == pytest.approx(median, abs=0.01)
    assert shares[1] > least
