"""The audit on simulated fleets: who is named, who is not, and how often chance names somebody."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from ingero_detect.audit.audit import audit
from ingero_detect.audit.audit_results import AuditResult, Population
from ingero_detect.audit.audit_tiers import AuditLevel
from ingero_detect.audit.chip_effects import binomial_upper_tail, unit_effects
from ingero_detect.audit.chip_levels import two_levels
from ingero_detect.audit.node_runs import lost_in_runs
from ingero_detect.audit.place_levels import place_levels
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.healthy_spread import OF_CHIPS, OF_FEW_JOBS, Sum, normal_upper_tail, outlier_chances
from ingero_testing.audit_fleets import BAD_VALUES, CHIP_SPREADS, NOISES, SINGLE_RUN_NOISES, SimulatedFleet

FLEET = SimulatedFleet(chips=160, runs=8)


def named(result: AuditResult) -> set[tuple[str, int]]:
    return {(str(one.level), one.number) for one in result.findings}


def population(effect: np.ndarray, runs: int = 6, seed: int = 1, per_node: int = 8, group: int = 0) -> Population:
    """Chips with given effects, noise of 1 % and runs that differ by 5 %."""
    random = np.random.default_rng(seed)
    chips = len(effect)
    unit, run = np.divmod(np.arange(chips * runs), runs)
    slowness = effect[unit] + 0.05 * random.normal(size=runs)[run] + 0.01 * random.normal(size=len(unit))
    node = np.arange(chips) // per_node
    nodes = int(node.max()) + 1
    groups = np.arange(nodes) // group if group else np.full(nodes, -1)
    return Population("", slowness, unit, run, node, groups)


def spread(chips: int, seed: int = 2) -> np.ndarray:
    return np.asarray(0.01 * np.random.default_rng(seed).normal(size=chips))


@pytest.mark.parametrize("noise", NOISES)
def test_chance_names_somebody_in_few_healthy_fleets(noise: str) -> None:
    random = np.random.default_rng(7)
    fleets = [replace(FLEET, noise=noise, runs=runs) for runs in (1, 3, 10) for _ in range(7)]

    wrong = sum(bool(audit([fleet.draw(random)[0]]).findings) for fleet in fleets)

    assert wrong <= 4


@pytest.mark.parametrize("chips_are", CHIP_SPREADS)
def test_healthy_chips_on_a_long_slow_side_are_seldom_named_and_lemons_are(chips_are: str) -> None:
    random = np.random.default_rng(5)
    healthy = SimulatedFleet(chips=200, runs=5, chip_spread=0.02, chips_are=chips_are)
    shares, found = list[float](), list[float]()
    for _ in range(12):
        given, slow, _ = replace(healthy, slow_share=0.03, loss=(0.16, 0.28)).draw(random)
        these, truth = named(audit([given])), {("chip", int(chip)) for chip in np.flatnonzero(slow)}
        shares.append(len(these - truth) / max(1, len(these)))
        found.append(len(these & truth) / len(truth))

    assert sum(bool(audit([healthy.draw(random)[0]]).findings) for _ in range(12)) <= 2
    assert np.mean(shares) <= 0.1
    assert np.mean(found) >= 0.95


def test_the_sum_of_lognormal_chips_and_noise_has_its_tail() -> None:
    random = np.random.default_rng(6)
    chips = np.exp(0.75 * random.normal(size=400_000))
    values = np.sqrt(0.85) * (chips - chips.mean()) / chips.std() + np.sqrt(0.15) * random.normal(size=len(chips))
    places = np.array([-1.0, 0.0, 1.0, 3.0, 6.0])

    share = (values > places[:, None]).mean(axis=1)

    assert Sum(np.inf, 0.85, 0.75).upper_tail(places) == pytest.approx(share, rel=0.08)


@pytest.mark.parametrize("noise", BAD_VALUES)
def test_single_bad_values_name_somebody_in_few_healthy_fleets(noise: str) -> None:
    random = np.random.default_rng(11)
    fleets = [SimulatedFleet(chips=400, runs=runs, noise=noise) for runs in (2, 3, 5, 10) for _ in range(4)]

    assert sum(bool(audit([fleet.draw(random)[0]]).findings) for fleet in fleets) <= 2


def test_slow_chips_are_named_although_single_values_are_bad() -> None:
    given, slow, _ = SimulatedFleet(runs=5, noise="1 % of values bad", slow_share=0.03, loss=(0.12, 0.2)).draw(
        np.random.default_rng(3)
    )

    assert named(audit([given])) == {("chip", int(chip)) for chip in np.flatnonzero(slow)}


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("noise", SINGLE_RUN_NOISES)
def test_one_or_two_runs_name_nobody_in_a_healthy_fleet_whatever_the_noise(noise: str, runs: int) -> None:
    random = np.random.default_rng(12)
    fleet = replace(FLEET, noise=noise, runs=runs)

    assert sum(bool(audit([fleet.draw(random)[0]]).findings) for _ in range(8)) <= 1


@pytest.mark.parametrize(("share", "loss", "least"), [(0.02, (0.16, 0.28), 0.8), (0.1, (0.08, 0.2), 0.45)])
def test_one_run_names_clearly_slow_chips(share: float, loss: tuple[float, float], least: float) -> None:
    random = np.random.default_rng(13)
    found = right = 0
    for _ in range(8):
        given, slow, _ = SimulatedFleet(chips=200, runs=1, slow_share=share, loss=loss).draw(random)
        found += len(named(audit([given])) & {("chip", int(chip)) for chip in np.flatnonzero(slow)})
        right += int(slow.sum())

    assert found >= least * right


def test_a_chip_slow_in_one_of_two_runs_is_not_named() -> None:
    given = population(spread(160), runs=2)
    given.slowness[(given.unit == 9) & (given.run == 1)] += 0.5

    assert named(audit([given])) == set()


@pytest.mark.parametrize("runs", [2, 3])
def test_runs_in_which_whole_nodes_are_slow_hide_no_slow_chip_and_name_no_node(runs: int) -> None:
    given = population(spread(200), runs=runs)
    slow = [5, 43, 44, 122]
    given.slowness[np.isin(given.unit, slow)] += 0.15
    for node, run in ((3, 0), (5, 0), (9, 1), (20, 1)):
        given.slowness[(given.unit // 8 == node) & (given.run == run)] += 0.2

    assert named(audit([given])) == {("chip", chip) for chip in slow}


def test_chance_makes_no_run_of_a_node_slow() -> None:
    random = np.random.default_rng(8)
    fleets = [SimulatedFleet(chips=100, runs=runs).draw(random)[0] for runs in (2, 5) for _ in range(20)]
    fits = [unit_effects(one.slowness, one.unit, one.run, len(one.node)) for one in fleets]

    assert not any(lost_in_runs(fit.by_run, one.node, fit.noise).any() for one, fit in zip(fleets, fits, strict=True))


@pytest.mark.parametrize(("bad", "runs"), [(1, 2), (2, 4), (5, 10)])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_node_slow_in_half_of_its_runs_is_not_named(bad: int, runs: int, labelled: bool) -> None:
    given = population(spread(200), runs=runs)
    given.slowness[(given.unit // 8 == 9) & (given.run < bad)] += 0.1
    if not labelled:
        given.slowness[:] -= np.array([np.median(given.slowness[given.run == run]) for run in range(runs)])[given.run]
        given = replace(given, run=np.full(len(given.run), -1))

    assert named(audit([given])) == set()


def test_a_node_slow_in_most_of_its_runs_is_named_with_their_share() -> None:
    given = population(spread(200), runs=5)
    given.slowness[(given.unit // 8 == 9) & (given.run < 3)] += 0.1

    (one,) = audit([given]).findings

    assert (one.level, one.number, one.chronic) == (AuditLevel.NODE, 9, 0.6)


@pytest.mark.parametrize(("slow", "expected"), [(1, set()), (2, {("group", 1)})])
def test_a_rack_slow_in_both_of_two_runs_is_named_and_not_one_slow_in_one(slow: int, expected: set[object]) -> None:
    given = population(spread(640), runs=2, group=8)
    given.slowness[(given.unit // 64 == 1) & (given.run < slow)] += 0.1

    assert named(audit([given])) == expected


def test_nodes_that_are_bad_in_single_runs_by_chance_name_nobody() -> None:
    random = np.random.default_rng(15)
    wrong = 0
    for seed in range(10):
        given = population(spread(320, seed), runs=2, seed=seed)
        bad = (random.random((40, 2)) < 0.05) * random.uniform(0.05, 0.2, (40, 2))
        given.slowness[:] += bad[given.unit // 8, given.run]
        wrong += bool(audit([given]).findings)

    assert wrong <= 1


def with_single_values(bad_share: float, seed: int) -> tuple[Population, np.ndarray]:
    """200 chips with five runs, a fifth of which has only one of them; and which these are."""
    random = np.random.default_rng(seed)
    given = population(spread(200, seed), runs=5, seed=seed)
    given.slowness[:] += (random.random(1000) < bad_share) * random.uniform(0.03, 0.25, 1000)
    alone = random.random(200) < 0.2
    kept = ~alone[given.unit] | (given.run == random.integers(0, 5, 200)[given.unit])
    given = replace(given, slowness=given.slowness[kept], unit=given.unit[kept], run=given.run[kept])
    return given, np.flatnonzero(alone)


def test_a_single_value_is_no_proof_where_the_other_chips_have_bad_ones() -> None:
    assert sum(bool(audit([with_single_values(0.05, seed)[0]]).findings) for seed in range(10)) <= 1


def partly_single(share: float, seed: int, bad_share: float = 0.0) -> tuple[Population, np.ndarray]:
    """200 chips with four runs, a share of which has only one of them; four of either kind are slow; which ones."""
    random = np.random.default_rng(seed)
    alone = random.permutation(200) < share * 200
    slow = np.concatenate([random.choice(np.flatnonzero(some), 4, replace=False) for some in (alone, ~alone)])
    effect = spread(200, seed)
    effect[slow] += 0.3
    given = population(effect, runs=4, seed=seed)
    kept = ~alone[given.unit] | (given.run == given.unit % 4)
    given.slowness[:] += (random.random(800) < bad_share) * ~np.isin(given.unit, slow) * random.uniform(0.1, 0.4, 800)
    return replace(given, slowness=given.slowness[kept], unit=given.unit[kept], run=given.run[kept]), slow


@pytest.mark.parametrize("share", [0.1, 0.45, 0.55, 0.8])
def test_a_chip_with_one_value_is_named_whatever_the_share_of_such_chips(share: float) -> None:
    missed = 0
    for seed in range(4):
        given, slow = partly_single(share, seed)
        found = {number for level, number in named(audit([given])) if level == "chip"}
        missed += len(set(slow.tolist()) - found)
        assert len(found - set(slow.tolist())) <= 1

    assert missed <= 1


def test_a_value_no_worse_than_bad_ones_of_other_chips_is_said_and_not_named() -> None:
    given, slow = partly_single(0.4, 1, 0.02)

    found = audit([given])

    assert named(found) & {("chip", number) for number in slow.tolist()} == {
        ("chip", one) for one in slow[4:].tolist()
    }
    assert set(slow[:4].tolist()) <= {number for number, _ in found.populations[0].alone}


def test_chips_with_several_values_are_named_beside_chips_with_one() -> None:
    given, alone = with_single_values(0.01, 3)
    chip = int(np.setdiff1d(np.arange(200), alone)[0])
    given.slowness[given.unit == chip] += 0.12

    assert named(audit([given])) == {("chip", chip)}


def unsteady(runs: int, seed: int, loss: float = 0.0) -> tuple[Population, np.ndarray]:
    """400 chips with noise of 1 %, of which 20 have one of 8 %; which these are."""
    random = np.random.default_rng(seed)
    effect, chosen = spread(400, seed), random.choice(400, 20, replace=False)
    effect[chosen[:3]] += loss
    given = population(effect, runs, seed)
    given.slowness[:] += np.isin(given.unit, chosen) * 0.08 * random.normal(size=len(given.unit))
    return given, chosen


@pytest.mark.parametrize("runs", [4, 5, 7, 10])
def test_chips_whose_values_scatter_far_more_are_said_to_be_unsteady_and_not_slow(runs: int) -> None:
    wrong, noted, others = 0, 0, 0
    for seed in range(8):
        given, chosen = unsteady(runs, seed)
        found = audit([given])
        wrong += bool(found.findings)
        said = {number for number, _, _ in found.populations[0].unsteady}
        noted, others = noted + len(said & set(chosen.tolist())), others + len(said - set(chosen.tolist()))

    assert wrong <= 1
    assert noted > (0.6 if runs < 7 else 0.8) * 160
    assert others == 0


@pytest.mark.parametrize(("runs", "good"), [(3, 1), (4, 1), (6, 1), (6, 2), (8, 2)])
def test_a_slow_chip_with_some_good_values_is_named(runs: int, good: int) -> None:
    for seed in range(3):
        given = population(spread(200, seed), runs, seed)
        slow = np.isin(given.unit, [9, 120]) & (given.run >= good)
        given.slowness[slow] += 0.16

        assert named(audit([given])) == {("chip", 9), ("chip", 120)}


def test_an_unsteady_chip_that_is_far_slower_is_named_with_a_wide_interval() -> None:
    hits = 0
    for seed in range(4):
        given, chosen = unsteady(10, seed, 0.4)
        findings = {one.number: one for one in audit([given]).findings}
        for number in set(chosen[:3].tolist()) & set(findings):
            hits += findings[number].loss_low < 1 - np.exp(-0.4) < findings[number].loss_high
            assert findings[number].loss_high - findings[number].loss_low > 0.04

    assert hits >= 9


def test_one_bad_value_does_not_make_a_slow_chip_unsteady() -> None:
    given = population(spread(160), runs=5)
    given.slowness[given.unit == 9] += 0.1 + 0.6 * (given.run[given.unit == 9] == 2)

    found = audit([given])

    assert named(found) == {("chip", 9)}
    assert found.populations[0].unsteady == ()


@pytest.mark.parametrize(("runs", "wrong"), [(8, (2,)), (30, (2, 11)), (100, (2, 11, 50))], ids=str)
def test_single_values_that_no_chip_reaches_do_not_make_a_slow_chip_unsteady(
    runs: int, wrong: tuple[int, ...]
) -> None:
    for seed in range(3):
        given = population(spread(160, seed), runs=runs, seed=seed)
        given.slowness[given.unit == 9] += 0.12 - np.log(1000) * np.isin(given.run[given.unit == 9], wrong)
        given.slowness[given.unit == 40] -= np.log(2) * np.isin(given.run[given.unit == 40], wrong)

        found = audit([given])

        assert named(found) == {("chip", 9)}
        assert found.populations[0].unsteady == ()


def test_a_chip_with_many_values_that_no_chip_reaches_is_unsteady() -> None:
    given = population(spread(160), runs=20)
    given.slowness[given.unit == 9] -= np.log(2) * (given.run[given.unit == 9] % 2 == 0)

    assert [number for number, _, _ in audit([given]).populations[0].unsteady] == [9]


def test_chips_and_nodes_that_have_become_slower_are_said_and_not_named() -> None:
    given = population(spread(200), runs=12)
    given.slowness[(given.unit == 100) & (given.run >= 7)] += 0.15
    given.slowness[(given.unit // 8 == 3) & (given.run >= 9)] += 0.1
    given.slowness[(given.unit == 150) & (given.run >= 3) & (given.run < 7)] += 0.15

    result = audit([given])

    assert named(result) == set()
    later = {(str(level), number): change for level, number, change in result.populations[0].later}
    assert {name: change.run for name, change in later.items()} == {("chip", 100): 7, ("node", 3): 9}
    assert later["chip", 100].loss == pytest.approx(0.15, abs=0.02)


@pytest.mark.parametrize(("runs", "first"), [(12, 5), (12, 3), (6, 2), (20, 7)])
def test_chips_that_are_slow_in_most_runs_and_in_all_since_one_are_named(runs: int, first: int) -> None:
    given = population(spread(200), runs=runs)
    given.slowness[np.isin(given.unit, (100, 130)) & (given.run >= first)] += 0.15
    given.slowness[(given.unit // 8 == 7) & (given.run >= first)] += 0.1

    found = audit([given])

    assert named(found) == {("chip", 100), ("chip", 130), ("node", 7)}
    assert {one.since for one in found.findings} == {first}
    assert all(one.loss == pytest.approx(0.13, abs=0.03) for one in found.findings if one.level == "chip")
    assert found.populations[0].later == ()


def test_a_chip_that_is_slow_no_more_is_said_and_not_named() -> None:
    given = population(spread(200), runs=9)
    given.slowness[(given.unit == 100) & (given.run < 6)] += 0.15

    found = audit([given])

    assert named(found) == set()
    ((number, change),) = found.populations[0].recovered
    assert (number, change.run) == (100, 6)
    assert change.loss == pytest.approx(-0.15, abs=0.02)


def test_few_healthy_fleets_have_chips_that_became_slower() -> None:
    random = np.random.default_rng(16)

    assert sum(bool(audit([FLEET.draw(random)[0]]).populations[0].later) for _ in range(20)) <= 4


def rounded(slow: float, seed: int) -> Population:
    """Chips that differ by 0.4 %, in ten runs with a noise of 0.6 %, whose speeds near 41 are whole numbers."""
    random = np.random.default_rng(seed)
    unit, run = np.divmod(np.arange(2000), 10)
    effect = 0.004 * random.normal(size=200)
    effect[9] += slow
    speed = np.round(41 * random.uniform(0.97, 1.03) * np.exp(-effect[unit] - 0.006 * random.normal(size=2000)))
    return Population("", -np.log(speed), unit, run, np.arange(200) // 8, np.full(25, -1), 0.5 / 41)


def test_a_loss_of_one_rounding_step_is_no_proof() -> None:
    assert sum(bool(audit([rounded(0.0, seed)]).findings) for seed in range(10)) <= 1
    assert sum(bool(audit([replace(rounded(0.0, seed), rounding=0.0)]).findings) for seed in range(10)) > 1


def test_a_loss_of_several_rounding_steps_is_named_with_half_a_step_of_doubt() -> None:
    (one,) = (one for one in audit([rounded(0.12, 2)]).findings if one.number == 9)

    assert one.loss_high - one.loss_low > 0.9 / 41


@pytest.mark.parametrize("slow", [60, 80])
def test_slow_chips_that_are_too_many_to_be_outliers_are_said(slow: int) -> None:
    effect = spread(200)
    effect[np.random.default_rng(1).choice(200, slow, replace=False)] += 0.1

    found = audit([population(effect)])

    (note,) = found.populations[0].notes
    assert found.findings == ()
    assert note.startswith(f"{slow} of 200 chips are 9.")


def test_a_tenth_of_the_chips_are_a_level_if_they_are_alike_and_near() -> None:
    levels, near, far = 0, 0, 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        effect, slow = 0.01 * random.normal(size=200), np.arange(200) < 20
        levels += two_levels(effect + 0.07 * slow) == 20
        near += two_levels(effect + random.uniform(0.04, 0.12, 200) * slow) > 0
        far += two_levels(effect + 0.15 * slow) > 0

    assert levels >= 22
    assert near <= 2
    assert far == 0


@pytest.mark.parametrize("noise", NOISES)
def test_healthy_fleets_have_one_level(noise: str) -> None:
    random = np.random.default_rng(17)
    for runs in (2, 10):
        assert audit([replace(FLEET, noise=noise, runs=runs).draw(random)[0]]).populations[0].notes == ()
    for draw in (random.uniform, random.normal, random.exponential, random.laplace):
        assert two_levels(draw(size=400)) == 0


def bins(share: float, distance: float, chips: int = 200, seed: int = 1) -> np.ndarray:
    """Effects of chips of which a share, placed at random, is slower, and differs no more than the others."""
    random = np.random.default_rng(seed)
    effect = 0.01 * random.normal(size=chips)
    effect[random.choice(chips, round(share * chips), replace=False)] += distance
    return np.asarray(effect)


@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize(("share", "fewer"), [(0.16, 32), (0.25, 50), (0.5, 100), (0.7, 60)])
def test_chips_of_a_level_of_their_own_are_not_named_nor_nodes_that_have_many_of_them(
    share: float, fewer: int, runs: int
) -> None:
    for seed in range(6):
        found = audit([population(bins(share, 0.12, seed=seed), runs, seed, per_node=4)])

        assert named(found) == set()
        (note,) = found.populations[0].notes
        assert abs(int(note.split(" of 200 chips are 1")[0]) - fewer) <= 2
        assert ("% faster, at a level" in note) == (share == 0.7)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
def test_slow_chips_behind_two_levels_are_named_with_their_loss(share: float) -> None:
    effect = bins(share, 0.06)
    effect[[7, 60, 130]] = 0.01 * np.array([-1, 0, 1]) + 0.3

    found = audit([population(effect, per_node=4)])

    assert {("chip", 7), ("chip", 60), ("chip", 130)} <= named(found)
    assert len(found.findings) <= 4
    assert found.findings[0].loss == pytest.approx(1 - np.exp(-0.31), abs=0.03)
    assert any("level of their own" in note for note in found.populations[0].notes)


@pytest.mark.parametrize(("share", "names"), [(0.1, True), (0.26, False), (0.4, False)])
def test_slow_chips_that_are_a_quarter_of_all_are_not_named_however_slow_each_is(share: float, names: bool) -> None:
    for seed in range(6):
        random = np.random.default_rng(seed)
        effect = 0.01 * random.normal(size=200)
        effect[random.choice(200, round(share * 200), replace=False)] += random.uniform(0.06, 0.3, round(share * 200))

        assert bool(named(audit([population(effect, 4, seed, per_node=4)]))) is names


def test_a_tenth_of_slow_chips_is_not_too_many_though_one_is_named_that_is_hardly_slower() -> None:
    given, slow, _ = SimulatedFleet(slow_share=0.1, node_spread=0.01).draw(np.random.default_rng(37))

    assert len(named(audit([given])) & {("chip", int(chip)) for chip in np.flatnonzero(slow)}) >= 18


def test_a_heavy_tail_on_both_sides_gives_a_larger_chance_where_few_jobs_make_it() -> None:
    values = np.random.default_rng(14).standard_t(3, 300)
    values[0] = 15.0
    careful, usual = outlier_chances(values, prior=OF_FEW_JOBS)[0], outlier_chances(values)[0]

    assert careful > 1.5 * usual


def test_beyond_a_long_tail_the_chance_allows_for_what_is_not_known_of_it_and_beyond_a_normal_one_hardly() -> None:
    places = (np.arange(100) + 0.5) / 100
    long = np.append(-np.log(1 - places), 7.3)
    short = np.append(np.array([NormalDist().inv_cdf(place) for place in places]), 4.6)
    by_shape = replace(OF_CHIPS, tail=0.0)

    assert outlier_chances(long, prior=by_shape)[-1] < np.exp(-7.3) < outlier_chances(long)[-1] / 2
    assert outlier_chances(long)[-1] < 10 * np.exp(-7.3)
    assert outlier_chances(short)[-1] < 2 * outlier_chances(short, prior=by_shape)[-1]


@pytest.mark.parametrize("chips", [16, 48, 128])
def test_a_chip_that_loses_far_more_than_one_run_scatters_is_mostly_named_in_a_small_fleet_too(chips: int) -> None:
    random = np.random.default_rng(5)
    fleet = SimulatedFleet(chips=chips, runs=1, slow_share=max(0.03, 1 / chips), loss=(0.16, 0.28))
    found = right = false = 0
    for _ in range(8):
        given, slow, _ = fleet.draw(random)
        truth, these = {("chip", int(chip)) for chip in np.flatnonzero(slow)}, named(audit([given]))
        found, right, false = found + len(these & truth), right + len(truth), false + len(these - truth)

    assert found >= 0.6 * right and false <= 1, (found, right, false)


def test_slow_chips_are_named_and_nearly_nobody_else() -> None:
    random = np.random.default_rng(3)
    found = right = false = 0
    for _ in range(8):
        given, slow, _ = replace(FLEET, slow_share=0.04).draw(random)
        these = named(audit([given]))
        truth = {("chip", int(chip)) for chip in np.flatnonzero(slow)}
        found, right, false = found + len(these & truth), right + len(truth), false + len(these - truth)

    assert found >= 0.95 * right
    assert false <= 0.1 * found


def test_a_node_whose_chips_are_all_slow_is_one_finding() -> None:
    effect = spread(160)
    effect[24:32] += 0.1

    (one,) = audit([population(effect)]).findings

    assert (one.level, one.number) == (AuditLevel.NODE, 3)
    assert one.members == tuple(range(24, 32))
    assert one.loss_low < 1 - np.exp(-0.1) < one.loss_high


def test_a_chip_slower_than_the_others_of_a_slow_node_is_named_as_well() -> None:
    effect = spread(160)
    effect[24:32] += 0.1
    effect[27] += 0.15

    assert named(audit([population(effect)])) == {("node", 3), ("chip", 27)}


def test_one_slow_chip_does_not_accuse_its_node() -> None:
    for per_node in (2, 4, 8):
        effect = spread(160)
        effect[17] += 0.5

        assert named(audit([population(effect, per_node=per_node)])) == {("chip", 17)}


def test_most_chips_of_a_node_are_one_finding_where_nodes_are_too_few_to_compare() -> None:
    effect = spread(40)
    effect[8:13] += 0.15

    assert named(audit([population(effect)])) == {("node", 1)}


def test_two_slow_nodes_of_eight_are_not_named_but_said_to_be_at_another_level() -> None:
    effect = 2 * spread(64)
    effect[8:16] += 0.068
    effect[32:40] += 0.07

    found = audit([population(effect, runs=20)])

    assert found.findings == ()
    apart = [(str(level), number, loss) for level, number, loss in found.populations[0].apart]
    assert apart == [("node", 1, pytest.approx(0.066, abs=0.01)), ("node", 4, pytest.approx(0.068, abs=0.01))]
    assert audit([population(spread(64))]).populations[0].apart == ()


def test_a_node_that_is_nearly_slow_enough_is_said_to_be_slower() -> None:
    said = named_too = healthy = 0
    for seed in range(10):
        effect = 1.5 * spread(200, seed)
        healthy += bool(audit([population(effect, 4, seed, per_node=4)]).populations[0].apart)
        effect[40:44] += 0.048
        found = audit([population(effect, 4, seed, per_node=4)])
        named_too += ("node", 10) in named(found)
        said += any(number == 10 for _, number, _ in found.populations[0].apart)

    assert said + named_too >= 7
    assert said >= 1
    assert healthy <= 1


def test_a_chip_that_is_nearly_slow_enough_is_said_to_be_slower() -> None:
    said = named_too = healthy = 0
    for seed in range(10):
        effect = spread(100, seed)
        healthy += bool(audit([population(effect, 3, seed)]).populations[0].apart)
        effect[40] = 0.055
        found = audit([population(effect, 3, seed)])
        named_too += ("chip", 40) in named(found)
        said += any(number == 40 for level, number, _ in found.populations[0].apart if level == "chip")

    assert said + named_too >= 6
    assert said >= 2
    assert healthy <= 1


def test_a_quarter_of_the_nodes_that_are_slow_by_the_same_are_of_another_kind() -> None:
    effect = spread(256)
    effect[192:] += 0.35

    found = audit([population(effect)])

    assert found.findings == ()
    assert [number for _, number, _ in found.populations[0].apart] == list(range(24, 32))


def test_nodes_that_are_slow_by_different_shares_are_faults_however_many() -> None:
    effect = spread(256)
    effect[:40] += np.repeat([0.1, 0.17, 0.24, 0.31, 0.38], 8)

    assert [number for level, number in sorted(named(audit([population(effect)]))) if level == "node"] == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(("nodes", "slow"), [(30, 3), (30, 5), (60, 10)])
def test_nodes_that_lose_very_different_shares_are_named_and_not_their_chips(nodes: int, slow: int) -> None:
    """Far outliers are no proof that healthy nodes have a heavy tail."""
    wrong = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        effect = spread(8 * nodes, seed)
        chosen = random.choice(nodes, slow, replace=False)
        for node, loss in zip(chosen, random.uniform(0.15, 0.55, slow), strict=True):
            effect[8 * node : 8 * node + 8] -= np.log(1 - loss)

        found = audit([population(effect, 3, seed)])

        assert {number for level, number in named(found) if level == "node"} == set(chosen.tolist())
        wrong += [number for level, number in named(found) if level == "chip"]
    assert len(wrong) <= 2, "healthy chips, at a rate of 5 % of what is named"


def test_a_slow_rack_is_one_finding() -> None:
    effect = spread(640)
    effect[64:128] += 0.12

    assert named(audit([population(effect, group=8)])) == {("group", 1)}


def test_a_slow_rack_of_seven_is_named_and_none_of_seven_that_differ() -> None:
    random = np.random.default_rng(11)
    rack, run = np.repeat(np.arange(7), 32), np.tile(np.arange(3), 224)
    unit, node = np.repeat(np.arange(224), 3), np.arange(224) // 4
    found, wrong = 0, 0
    for _ in range(10):
        level = 0.012 * random.normal(size=224) + 0.01 * random.normal(size=7)[rack]
        noise = 0.008 * random.normal(size=len(unit))
        wrong += bool(audit([Population("", level[unit] + noise, unit, run, node, np.arange(56) // 8)]).findings)
        level = 0.012 * random.normal(size=224) + 0.05 * (rack == 2)
        given = Population("", level[unit] + noise, unit, run, node, np.arange(56) // 8)
        found += named(audit([given])) == {("group", 2)}

    assert wrong <= 1
    assert found >= 9


def test_a_finding_says_which_of_its_members_are_slow() -> None:
    effect = spread(640)
    effect[64 : 64 + 5 * 8] += 0.12

    (one,) = audit([population(effect, group=8)]).findings

    assert (one.level, one.number, one.slow, one.judged) == (AuditLevel.GROUP, 1, (8, 9, 10, 11, 12), 8)


def test_a_bad_run_of_a_chip_is_not_chronic() -> None:
    given = population(spread(64), runs=9)
    bad = (given.unit == 5) & (given.run < 3)
    given.slowness[bad] += 0.6

    assert named(audit([given])) == set()


def test_a_small_population_is_refused_with_the_reason() -> None:
    effect = spread(8)
    effect[2] += 1.0

    result = audit([population(effect)])

    assert not result.findings
    assert "only 8 can be compared" in result.populations[0].refused


def test_a_loss_too_small_to_matter_is_not_reported() -> None:
    effect = 0.1 * spread(160)
    effect[9] += 0.03
    given = population(effect, runs=60)

    assert named(audit([given], min_loss=0.02)) == {("chip", 9)}
    assert named(audit([given], min_loss=0.05)) == set()


def test_populations_are_judged_apart_under_one_rate() -> None:
    slower_model = population(spread(64, 5) + 0.4, seed=5)
    effect = spread(64, 6)
    effect[3] += 0.15
    result = audit([slower_model, population(effect, seed=6)])

    assert [(one.population, one.number) for one in result.findings] == [(1, 3)]


def test_equal_values_name_nobody_and_a_lower_one_is_named() -> None:
    node = np.full(40, -1)
    none = np.full(40, -1)
    values = np.zeros(40)
    assert not audit([Population("", values, np.arange(40), none, node, none[:0])]).findings

    values[7] = 0.1
    assert named(audit([Population("", values, np.arange(40), none, node, none[:0])])) == {("chip", 7)}


def test_an_implausibly_fast_chip_is_left_out_and_reported() -> None:
    effect = spread(64)
    effect[2] -= 3.0
    result = audit([population(effect)])

    assert not result.findings
    assert [number for number, _ in result.populations[0].implausible] == [2]


def test_one_value_of_less_than_half_the_speed_is_measured_again_and_hides_no_slow_chip() -> None:
    effect = spread(200)
    effect[[7, 60, 130]] += (0.2, 0.25, 0.65)
    effect[20] += 1.2
    effect[80:88] += 1.0

    result = audit([population(effect, 1)])

    assert named(result) == {("chip", 7), ("chip", 60), ("chip", 130)}
    assert [(str(one.level), one.number) for one in result.populations[0].doubtful] == [("node", 10), ("chip", 20)]
    assert named(audit([population(effect, 2)])) == {("chip", chip) for chip in (7, 20, 60, 130)} | {("node", 10)}


@pytest.mark.parametrize("faster", [0.2, 0.3, 0.37])
def test_one_chip_that_is_far_too_fast_hides_no_slow_ones_in_one_run(faster: float) -> None:
    effect = spread(200)
    effect[[7, 60, 130]] += 0.2
    effect[20] -= faster

    result = audit([population(effect, 1)])

    assert named(result) == {("chip", 7), ("chip", 60), ("chip", 130)}
    assert [number for number, _ in result.populations[0].implausible] == [20]


def test_a_chip_that_is_faster_by_one_step_of_rounded_values_is_judged() -> None:
    values = np.log(np.where(np.arange(64) == 9, 59.0, 60.0))
    node = np.arange(64) // 8
    given = Population("", values, np.arange(64), np.zeros(64, np.int64), node, np.full(8, -1), 1 / 120)

    assert audit([given]).populations[0].implausible == ()
    assert [one for one, _ in audit([replace(given, rounding=0.0)]).populations[0].implausible] == [9]


def test_several_fast_chips_show_what_one_run_can_do() -> None:
    effect = spread(200)
    effect[7] += 0.2
    effect[[20, 50, 90]] -= 0.2

    result = audit([population(effect, 1)])

    assert (named(result), result.populations[0].implausible) == (set(), ())


def test_effects_of_runs_are_removed_where_every_chip_has_other_runs() -> None:
    random = np.random.default_rng(4)
    unit = np.repeat(np.arange(50), 6)
    run = random.integers(0, 30, 300)
    effect, of_run = 0.02 * random.normal(size=50), 0.2 * random.normal(size=30)
    fit = unit_effects(effect[unit] + of_run[run] + 0.005 * random.normal(size=300), unit, run, 50)

    found = fit.effect - np.median(fit.effect)
    assert fit.run_spread > 0.1
    assert np.abs(found - effect + np.median(effect)).max() < 0.02


def test_a_run_of_two_chips_is_left_out_and_changes_nothing_else() -> None:
    random = np.random.default_rng(5)
    unit, run = np.tile(np.arange(50), 4), np.repeat(np.arange(4), 50)
    slowness = 0.02 * random.normal(size=50)[unit] + 0.1 * run + 0.005 * random.normal(size=200)
    without = unit_effects(slowness, unit, run, 50)
    for retest in (0, 2, 4):
        moved = np.where(run >= retest, run + 1, run)
        fit = unit_effects(
            np.append(slowness, (0.3, 0.3)), np.append(unit, (7, 8)), np.append(moved, (retest, retest)), 50
        )

        assert (fit.effect == without.effect).all()
        assert (fit.noise, fit.run_spread, fit.runs, fit.apart) == (without.noise, without.run_spread, 4, 2)


def test_runs_that_connect_no_chips_are_not_removed() -> None:
    unit = np.repeat(np.arange(24), 4)
    fit = unit_effects(np.zeros(96), unit, unit // 8, 24)

    assert fit.runs == 0
    assert (fit.count == 4).all()


def test_adjusted_chances_are_those_of_benjamini_and_hochberg() -> None:
    assert adjusted_chances(np.array([0.01, 0.5, 0.02, 0.04])).tolist() == pytest.approx([0.04, 0.5, 0.04, 0.16 / 3])


def test_the_binomial_tail_is_exact() -> None:
    found = binomial_upper_tail(np.array([2, 2, 6, 1]), np.array([2, 3, 10, 1]), np.array([0.05, 0.05, 0.5, 0.2]))

    assert found == pytest.approx([0.0025, 0.00725, 386 / 1024, 0.2])


def test_chances_among_normal_values_are_near_the_normal_ones_and_larger_for_few() -> None:
    random = np.random.default_rng(8)
    values = random.normal(size=400)
    values[0] = 5.0
    many, few = outlier_chances(values)[0], outlier_chances(values[:20])[0]

    assert 1e-7 < many < 1e-3
    assert few > many
    assert normal_upper_tail(np.array([0.0, 1.6449])).tolist() == pytest.approx([0.5, 0.05], rel=1e-3)


def at_places(nodes: int, per_node: int, slower: dict[int, float], seed: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Effects of chips, and their places in the nodes, some of which are slower."""
    place = np.tile(np.arange(per_node), nodes)
    return spread(nodes * per_node, seed) + np.array([slower.get(one, 0.0) for one in range(per_node)])[place], place


def test_chips_are_compared_with_those_at_their_place_in_the_node() -> None:
    effect, place = at_places(40, 4, {0: 0.05, 3: -0.03})
    effect[[22, 41]] += 0.1  # at the second and third place
    effect[64] += 0.1  # at the slow one
    given = population(effect, per_node=4)
    found = audit([replace(given, place=place)])

    assert named(found) == {("chip", 22), ("chip", 41), ("chip", 64)}
    assert all(0.07 < one.loss < 0.12 for one in found.findings)
    assert dict(found.populations[0].places) == {
        0: pytest.approx(0.05, abs=0.012),
        3: pytest.approx(-0.03, abs=0.012),
    }
    assert found.populations[0].spread < 0.7 * audit([given]).populations[0].spread


def test_places_that_differ_by_chance_are_not_told_apart() -> None:
    for seed in range(20):
        effect, place = at_places(27, 4, {}, seed)
        assert not place_levels(effect, np.ones(108, np.bool_), np.arange(108) // 4, place).any()


def test_chips_at_one_place_of_half_of_the_nodes_are_slow_and_not_its_level() -> None:
    effect, place = at_places(24, 8, {}, 3)
    slow = np.flatnonzero(place == 7)[:13]
    effect[slow] += 0.1
    found = audit([replace(population(effect), place=place)])

    assert named(found) == {("chip", int(chip)) for chip in slow}
    assert not found.populations[0].places
