"""Alarm levels: the theory's figures, and tails that are fitted to what a fleet does."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_detect.grouped import Floats, Groups, grouped_median
from ingero_detect.nodes import false_alarm_budget
from ingero_detect.nodes.false_alarm_budget import Tail


def test_run_length_is_siegmunds() -> None:
    """Published values for drift 0.5: one side: level 4 about 336, level 5 about 930."""
    assert false_alarm_budget.average_run_length(4.0, 0.5) == pytest.approx(336, rel=0.03)
    assert false_alarm_budget.average_run_length(5.0, 0.5) == pytest.approx(930, rel=0.03)


@given(st.floats(10, 1e9), st.floats(0.2, 2))
def test_the_theoretical_level_has_the_run_length_asked_for(ticks: float, drift: float) -> None:
    level = false_alarm_budget.theoretical_level(ticks, drift)

    assert (
        level == 0
        or false_alarm_budget.average_run_length(level, drift) == pytest.approx(ticks, rel=1e-4)
        or level < 1e-6
    )


def test_the_exponent_of_normal_steps_is_twice_the_drift() -> None:
    """For normal steps of mean -k and variance 1 the Lundberg exponent is 2k."""
    steps = np.random.default_rng(1).normal(size=2_000_000) - 1.0
    counts = np.bincount(false_alarm_budget.step_bins_of(steps), minlength=false_alarm_budget.STEP_BINS)[None].astype(
        float
    )

    assert false_alarm_budget.tail_exponent(counts)[0] == pytest.approx(2.0, abs=0.15)


def test_a_tail_that_was_seen_raises_the_level_and_one_that_was_not_seen_hardly_does() -> None:
    """240 ticks in which 2 % of the steps were the largest, and 240 ticks of normal noise."""
    rng = np.random.default_rng(3)
    normal = rng.normal(size=240) - 1.7
    tailed = np.where(rng.random(240) < 0.02, 4.9, normal)
    counts = np.array(
        [np.bincount(false_alarm_budget.step_bins_of(steps), minlength=48) for steps in (normal, tailed)], float
    )

    exponents = false_alarm_budget.tail_exponent(counts)

    assert exponents[0] > 2 * exponents[1]


@given(st.floats(1, 30), st.integers(1, 1000))
def test_the_less_a_cohort_has_seen_the_less_sure_is_its_tail(unseen: float, seed: int) -> None:
    """Autocorrelated ticks tell less: the exponent is never larger than for independent ones."""
    steps = np.random.default_rng(seed).normal(size=300) - 1.0
    counts = np.bincount(false_alarm_budget.step_bins_of(steps), minlength=48)[None].astype(float)

    few = false_alarm_budget.tail_exponent(counts, unseen)

    assert few <= false_alarm_budget.tail_exponent(counts) + 1e-6
    assert few <= false_alarm_budget.tail_exponent(10 * counts, unseen) + 1e-6


def test_levels_for_normal_noise_keep_the_budget_in_simulation() -> None:
    rng, nodes, ticks = np.random.default_rng(2), 200, 4000
    evidence, peak = np.zeros(nodes), np.zeros(nodes)
    peaks, steps = np.zeros((1, false_alarm_budget.BINS)), np.zeros((1, false_alarm_budget.STEP_BINS))
    for _ in range(ticks):
        step = rng.normal(size=nodes) - 1.0
        steps[0] += np.bincount(false_alarm_budget.step_bins_of(step), minlength=false_alarm_budget.STEP_BINS)
        after = np.maximum(0, evidence + step)
        ended = (evidence > 0) & (after == 0)
        peaks[0] += np.bincount(false_alarm_budget.bins_of(peak[ended]), minlength=false_alarm_budget.BINS)
        peak = np.where(after > 0, np.maximum(peak, after), 0)
        evidence = after
    hours = np.array([nodes * ticks * 5 / 3600])
    tail = false_alarm_budget.fit_tail(peaks, steps, hours)

    for allowed in (0.1, 0.01, 0.001):
        level = tail.level_for(allowed)[0]
        theory = false_alarm_budget.theoretical_level(720 / allowed, 1.0)
        assert theory - 0.8 <= level <= theory + 1.0


def an_hour_of_eight_nodes(draw: Callable[[np.random.Generator], Floats], clusters: int, hours: int = 1) -> Tail:
    """The tails that clusters fit to 720 ticks, or more, of a test with drift 1.8, what a tick adds limited to 4."""
    rng = np.random.default_rng(5)
    evidence, peak = np.zeros((2, clusters, 8))
    peaks, steps = np.zeros((clusters, false_alarm_budget.BINS)), np.zeros((clusters, false_alarm_budget.STEP_BINS))
    for _ in range(720 * hours):
        step = np.minimum(draw(rng) - 1.8, 4.0)
        after = np.maximum(0, evidence + step)
        cluster, node = np.nonzero((evidence > 0) & (after == 0))
        np.add.at(peaks, (cluster, false_alarm_budget.bins_of(peak[cluster, node])), 1)
        np.add.at(steps, (np.arange(clusters)[:, None], false_alarm_budget.step_bins_of(step)), 1)
        peak, evidence = np.where(after > 0, np.maximum(peak, after), 0), after
    return false_alarm_budget.fit_tail(peaks, steps, np.full(clusters, 8.0 * hours), 1.0, 0.001)


def test_an_hour_of_plain_noise_needs_little_more_than_the_level_of_theory() -> None:
    tail = an_hour_of_eight_nodes(lambda rng: rng.normal(size=(100, 8)), 100)

    levels = tail.level_for(0.001)

    above = levels - false_alarm_budget.theoretical_level(720 / 0.001, 1.8)
    assert np.exp(-2 * 1.8 * above).mean() < 1  # of the budget, used in the mean
    assert above.mean() < 0.6


def test_the_longer_plain_noise_lasts_the_closer_its_level_is_to_theory() -> None:
    """Records grow with the hours; that alone does not make noise less plain."""
    hour, day = (
        an_hour_of_eight_nodes(lambda rng: rng.normal(size=(20, 8)), 20, hours).level_for(0.001) for hours in (1, 20)
    )

    assert day.mean() < hour.mean()
    assert day.mean() < false_alarm_budget.theoretical_level(720 / 0.001, 1.8) + 0.4


def test_an_hour_of_tailed_noise_keeps_its_budget() -> None:
    """Student noise of 3 degrees of freedom exceeds a level of 11.0 once in a thousand node-hours of this test."""
    tail = an_hour_of_eight_nodes(lambda rng: rng.standard_t(3, size=(100, 8)), 100)

    assert np.quantile(tail.level_for(0.001), 0.1) > 11.0


@pytest.mark.parametrize(("theory", "first"), [(5.0, 7.5), (7.0, 9.0), (8.5, 9.0), (11.0, 11.0), (40.0, 30.0)])
def test_caution_never_asks_for_more_than_two_ticks_where_theory_does_not(theory: float, first: float) -> None:
    assert false_alarm_budget.initial_level(theory, 5.0) == pytest.approx(first)


def test_the_first_level_belongs_to_the_reference_value() -> None:
    levels = false_alarm_budget.initial_levels(720_000, np.array([1.0, 0.5, 0.3]), 5.0)

    assert levels[0] == pytest.approx(
        false_alarm_budget.initial_level(false_alarm_budget.theoretical_level(720_000, 1.0), 5.0)
    )
    assert 1.2 * levels[0] < levels[1] < levels[2] <= false_alarm_budget.HIGHEST_LEVEL


def test_without_data_the_level_is_the_first() -> None:
    none = np.zeros((1, false_alarm_budget.BINS))
    tail = false_alarm_budget.fit_tail(none, np.zeros((1, false_alarm_budget.STEP_BINS)), np.zeros(1))

    (level,) = false_alarm_budget.calibrated_levels([tail], np.zeros(1), 1e-4, np.array([8.5]))

    assert level == pytest.approx(8.5)


def test_the_first_level_fades_with_the_square_of_the_ticks_that_ask_for_a_lower_one() -> None:
    tail = Tail(*(np.array([value]) for value in (np.log(1e-4) + 8.0, 2.0, -np.inf, 2.0)))  # wants a level of 4

    levels = [
        float(false_alarm_budget.calibrated_levels([tail], np.array([ticks]), 1e-4, np.array([9.0]))[0])
        for ticks in (30.0, 300.0, 3000.0)
    ]

    assert levels == pytest.approx([9.0 - 5 / 101, 6.5, 4.0 + 5 / 101])


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4)), min_size=1, max_size=60),
    st.sampled_from([5, 70_000]),
)
def test_grouped_medians_are_medians(values: list[tuple[float, int]], groups: int) -> None:
    numbers = np.array([value for value, _ in values])
    group = np.array([group for _, group in values], np.int64)

    count, median = grouped_median(numbers, group, groups)

    for number in range(5):
        mine = numbers[group == number]
        assert count[number] == len(mine)
        if len(mine):
            assert median[number] == pytest.approx(np.median(mine), abs=1e-10 * np.abs(mine).max() + 1e-300)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6) | st.just(-np.inf), st.integers(-1, 5), st.booleans()), max_size=80))
def test_medians_of_standing_groups_are_medians(members: list[tuple[float, int, bool]]) -> None:
    values = np.array([value for value, _, _ in members], float)
    group = np.array([group for _, group, _ in members], np.int32)
    chosen = np.array([here for _, _, here in members], bool) & (group >= 0)
    groups = Groups(group, 8)
    count = np.bincount(group[chosen], minlength=8)

    median = groups.median(values[chosen], np.flatnonzero(chosen), count)

    for number in range(8):
        mine = values[chosen & (group == number)]
        with np.errstate(invalid="ignore"):
            expected = np.median(mine) if len(mine) else np.nan
        assert median[number] == pytest.approx(expected, nan_ok=True)
    assert groups.still(group.copy(), 8)
    assert not groups.still(group, 9)
    assert not len(group) or not groups.still(group + np.int32(1), 8)


@pytest.mark.parametrize(
    ("lengths", "allowed", "ticks"),
    [
        ([], 0.0, 2),
        ([1] * 100, 0.0, 2),  # a hundred of one tick say little about longer ones
        ([2], 0.0, 3),
        ([1, 1, 2], 0.0, 3),
        ([2] * 5, 4.0, 3),
        ([2] * 5, 6.0, 2),
        ([3, 3], 0.0, 4),
        ([15] * 3, 0.0, 15),
    ],
)
def test_a_large_loss_must_last_longer_than_those_that_ended_by_themselves(
    lengths: list[int], allowed: float, ticks: int
) -> None:
    runs = np.bincount(lengths, minlength=16)[None].astype(float)

    assert confirming(runs, np.zeros(16), allowed) == ticks


@pytest.mark.parametrize(
    ("share", "allowed", "ticks"),
    [(0.001, 0.0, 2), (0.02, 0.0, 3), (0.1, 0.0, 5), (0.1, 20.0, 3)],
)
def test_where_single_ticks_are_often_bad_by_chance_a_large_loss_must_last_longer(
    share: float, allowed: float, ticks: int
) -> None:
    """In 5,000 ticks of nodes, independent of one another."""
    by_chance: Floats = 5000 * share ** np.arange(16.0)

    assert confirming(np.zeros((1, 16)), by_chance, allowed) == ticks


def confirming(runs: Floats, by_chance: Floats, allowed: float) -> int:
    """Ticks that confirm a large loss in one cohort."""
    return int(false_alarm_budget.confirming_ticks(runs, by_chance[None], np.array([allowed]))[0])


def test_evidence_from_correlated_steps_decays_slower() -> None:
    values = np.random.default_rng(1).normal(-1, 1, 200_000)
    steps = np.bincount(false_alarm_budget.step_bins_of(values), minlength=false_alarm_budget.STEP_BINS)[
        None, :
    ].astype(float)

    alone, correlated = (float(false_alarm_budget.diffusion_exponent(steps, ratio)[0]) for ratio in (1.0, 4.0))

    assert alone == pytest.approx(2.0, abs=0.1), "the exponent of independent normal steps"
    assert correlated == pytest.approx(alone / 4)
