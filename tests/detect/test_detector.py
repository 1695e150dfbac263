"""Who is accused, when, on what evidence, and who is not."""

import gzip
import io
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from ingero_contract.identifiers import node_key
from ingero_contract.values import VerdictState
from ingero_detect.nodes.column_store import SnapshotError
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.observation import ACTIVE, HELD, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.verdicts import Kind

from .fleets import TICK, Matrix, healthy, play, play_each, play_side_by_side


def test_a_healthy_fleet_accuses_nobody() -> None:
    assert play(healthy(1000, 16)).accused() == []


def test_a_node_that_loses_a_third_is_named_within_three_ticks_and_cleared_when_well() -> None:
    fleets = [healthy(400, nodes) for nodes in (3, 4, 8, 64)]
    for rates in fleets:
        rates[200:300, 1] *= 0.67

    for played in play_side_by_side(fleets):
        (found,) = played.accused()
        assert found[1] == "n1"
        assert 200 <= found[0] <= 203
        assert played.whats("n1") == ["accused", "recovering", "cleared"]
        verdict = played.edges[0][1].verdict
        assert verdict.since == 1000 + 200 * TICK
        assert verdict.severity == pytest.approx(0.33, abs=0.05)
        assert verdict.expected == pytest.approx(100, rel=0.05)
        cleared = played.edges[-1][1].verdict
        assert cleared.recovered == pytest.approx(1000 + 300 * TICK, abs=2 * TICK)


def test_a_cohort_that_has_seen_large_faults_finds_a_small_one_as_soon_as_one_that_has_seen_none() -> None:
    histories = []
    for seed in range(4):
        late = healthy(860, 8, seed)
        late[800:, 0] *= 0.9
        after_others = late.copy()
        for number in range(1, 8):
            after_others[160 + 80 * number : 200 + 80 * number, number] *= 0.6
        histories += [late, after_others]
    found = [next(tick for tick, node in accused if node == "n0") for accused in play_each(histories)]
    waited = [with_others - alone for alone, with_others in zip(found[::2], found[1::2], strict=True)]

    assert sum(waited) / len(waited) <= 0.5, waited


def test_cohorts_are_judged_each_by_itself() -> None:
    quiet, late, all_slow = healthy(300, 8), healthy(300, 8, 2), healthy(300, 8, 3)
    late[200:, 3] *= 0.7
    all_slow[220:] *= 0.5

    assert play_each([quiet, late, all_slow]) == [play(rates).accused() for rates in (quiet, late, all_slow)]


def test_short_losses_that_accused_a_node_count_as_chance() -> None:
    """Of two cohorts with the same losses, the one that accused a node because of one is at least as careful."""
    rates = healthy(700, 8)
    rates[300:304, 1] *= 0.8
    played = play(rates)
    steps = played.detector.memory.group("steps_slow")[0]

    assert played.whats("n1") == ["accused", "recovering", "cleared"]
    assert steps[-16:].sum() > 2


def test_work_that_vanishes_is_stopped_within_two_ticks_in_a_fleet_of_three() -> None:
    rates, idle = healthy(200, 3), np.zeros((200, 3), bool)
    rates[100:, 2], idle[100:, 2] = 0.0, True

    played = play(rates, idle=idle)

    assert played.accused() == [(101, "n2")]
    assert played.edges[0][1].verdict.state is VerdictState.STOPPED


def test_a_rate_of_zero_is_stopped_work() -> None:
    rates = healthy(200, 4)
    rates[100:, 2] = 0.0

    played = play(rates)

    assert played.accused() == [(101, "n2")]
    assert str(played.edges[0][1].verdict.kind) == "stopped"


def test_a_cohort_that_rests_together_accuses_nobody() -> None:
    rates, idle = healthy(200, 4), np.zeros((200, 4), bool)
    idle[100:] = True
    rates[100:] = 0.0

    assert play(rates, idle=idle).accused() == []


def test_one_tick_accuses_nobody_however_bad_it_was() -> None:
    rates = healthy(400, 8)
    rates[200, 3] = 0.01

    assert play(rates).accused() == []


def test_a_pause_of_two_ticks_accuses_at_most_once_and_a_lasting_fault_is_named_within_four_ticks() -> None:
    rates = healthy(700, 8)
    for tick, node in ((300, 1), (350, 2), (400, 3), (450, 1), (500, 4)):
        rates[tick : tick + 2, node] *= 0.6
    rates[600:, 6] *= 0.6

    played = play(rates)

    assert played.accused() == [(301, "n1"), (602, "n6")]
    assert played.whats("n1") == ["accused", "recovering", "cleared"]


def test_a_fault_that_was_mended_does_not_delay_the_verdict_on_the_next_one() -> None:
    rates = healthy(700, 8)
    rates[300:308, 1] *= 0.01
    rates[400:410, 2] *= 0.6
    rates[500:, 6] *= 0.6

    *mended, (tick, node) = play(rates).accused()
    assert mended == [(301, "n1"), (401, "n2")]
    assert node == "n6" and tick <= 502


def test_frequent_pauses_of_one_tick_accuse_nobody_and_a_lasting_fault_is_still_named() -> None:
    rates = healthy(700, 8)
    for tick in range(300, 600, 10):
        rates[tick, tick // 10 % 8] *= 0.6
    rates[600:, 6] *= 0.6

    ((tick, node),) = play(rates).accused()
    assert node == "n6" and 602 <= tick <= 605


def test_a_node_that_loses_work_in_many_short_dips_is_named_and_stays_named() -> None:
    dips = [(5, 0.4), (8, 0.4), (4, 0.7)]
    fleets = [healthy(1400, 8, noise=0.01) for _ in dips]
    for rates, (every, left) in zip(fleets, dips, strict=True):
        rates[400:1100:every, 3] *= left

    for played, (every, left) in zip(play_side_by_side(fleets), dips, strict=True):
        *_, (tick, _) = played.accused()
        assert {node for _, node in played.accused()} == {"n3"} and len(played.accused()) <= 2 and tick <= 560
        lasting = next(edge.verdict for at, edge in played.edges if at == tick)
        assert lasting.since == pytest.approx(1000 + 400 * TICK, abs=20 * TICK)
        assert lasting.severity == pytest.approx((1 - left) / every, rel=0.25)
        assert [edge.what for at, edge in played.edges if at > tick] == ["recovering", "cleared"]
        assert all(1100 < at < 1400 for at, _ in played.edges if at > tick)


def test_dips_that_all_nodes_have_or_that_a_node_has_always_had_accuse_nobody() -> None:
    alike, always = healthy(1000, 8, noise=0.01), healthy(1000, 8, noise=0.01)
    for node in range(8):
        alike[400 + node :: 8, node] *= 0.4
    always[::8, 3] *= 0.4

    assert play_each([alike, always]) == [[], []]


def test_short_accusations_that_follow_one_another_become_one_that_lasts() -> None:
    rates = healthy(1600, 8, noise=0.01)
    for start in range(300, 1200, 20):
        rates[start : start + 6, 2] *= 0.5

    played = play(rates)

    assert {node for _, node in played.accused()} == {"n2"}
    assert len(played.accused()) <= 5
    assert played.whats("n2")[-1] == "cleared"


def test_noise_of_all_nodes_that_grows_accuses_few() -> None:
    kinds, histories = [(3, 0.0, 2), (4, 0.0, 3), (4, 0.7, 2)], []
    for factor, correlation, _ in kinds:
        for seed in range(4, 8):
            rng = np.random.default_rng(seed)
            noise = rng.normal(size=(800, 16))
            for tick in range(1, 800):
                noise[tick] = correlation * noise[tick - 1] + np.sqrt(1 - correlation**2) * noise[tick]
            noise[:500] *= 0.015
            noise[500:] *= 0.015 * factor
            histories.append(100 * np.exp(noise))
    accused = play_each(histories)

    for number, (_, _, most) in enumerate(kinds):
        assert sum(map(len, accused[4 * number : 4 * number + 4])) <= most


def test_a_straggler_beside_a_node_that_is_low_by_chance_is_no_crowd() -> None:
    fleets = [healthy(400, 8, seed=seed) for seed in (1, 2, 3, 4)]
    for rates in fleets:
        rates[300:, 4] *= 0.65
        rates[300, 2] = 100 * (1 - 3.7 * 0.03)

    assert play_each(fleets) == [[(301, "n4")]] * 4


def test_a_level_learnt_while_the_band_covered_the_noise_does_not_count_when_the_noise_has_grown() -> None:
    fleets = []
    for ticks in (1, 360):
        grown = 4.0 ** np.clip((np.arange(2400) - 1500) / ticks, 0, 1)
        fleets.append(100 * np.exp(0.02 * grown[:, None] * np.random.default_rng(3).normal(size=(2400, 64))))
        fleets[-1][2300:, 7] *= 0.5

    for accused in play_each(fleets):
        assert [node for _, node in accused if node != "n7"] == []
        assert [tick for tick, node in accused if node == "n7"] in ([2301], [2302], [2303])


def test_a_slow_leak_is_named_before_fifteen_percent_are_lost() -> None:
    rates = healthy(800, 16)
    rates[300:, 5] *= 1 - 0.01 * np.arange(500) * TICK / 60

    ((tick, node),) = play(rates).accused()

    assert node == "n5"
    assert (tick - 300) * TICK / 60 < 15


def test_a_leak_does_not_hide_as_noise_where_rates_wander_slowly() -> None:
    fleets = []
    for seed, memory in ((1, 0.8), (2, 0.8), (1, 0.95), (2, 0.95)):
        wander = 0.03 * np.random.default_rng(seed).normal(size=(900, 16))
        for tick in range(1, len(wander)):
            wander[tick] = memory * wander[tick - 1] + np.sqrt(1 - memory**2) * wander[tick]
        fleets.append(100 * np.exp(wander))
        fleets[-1][600:, 3] *= np.maximum(1 - 0.5 * np.arange(300) / 200, 0.5)

    for accused in play_each(fleets):
        ((tick, node),) = accused
        assert node == "n3"
        assert tick < 720, "half of it was lost at 800"


def test_a_node_slow_from_birth_is_named_against_its_peers() -> None:
    rates = healthy(100, 16)
    rates[:, 7] *= 0.7

    played = play(rates)

    ((tick, node),) = played.accused()
    assert (node, tick <= 40) == ("n7", True)
    verdict = played.edges[0][1].verdict
    assert (str(verdict.axis), str(verdict.kind)) == ("peers", "slow_from_start")


def test_nodes_of_many_cohorts_that_are_slow_from_birth_are_named_soon_after_one_another() -> None:
    """Only so many cohorts are examined in one tick."""
    cohorts, nodes = 80, 8
    rates = healthy(50, cohorts * nodes, noise=0.02)
    rates[:, ::nodes] *= 0.7
    played = play(
        rates, cohorts=[("c", f"job-{number}") for number in range(cohorts)],
        cohort=np.repeat(np.arange(cohorts), nodes),
    )  # fmt: skip

    ticks = [tick for tick, _ in played.accused()]
    assert [node for _, node in sorted(played.accused(), key=lambda one: int(one[1][1:]))] == [
        f"n{number}" for number in range(0, cohorts * nodes, nodes)
    ]
    assert max(ticks) - min(ticks) <= 3


def test_a_node_slow_from_birth_that_then_fails_is_accused_by_its_own_history() -> None:
    rates = healthy(200, 16)
    rates[:, 7] *= 0.7
    rates[120:, 7] *= 0.3

    played = play(rates)

    assert played.whats("n7") == ["accused"]
    verdict = played.detector.verdict(7)
    assert (str(verdict.axis), str(verdict.kind)) == ("own_history", "collapse")
    assert 1000 + 119 * TICK <= (verdict.since or 0) <= 1000 + 121 * TICK


def chips(nodes: int, spread: float, slow: dict[int, float], seed: int) -> Matrix:
    """Rates of a fleet whose chips differ by `spread` and of which some are slower by a share."""
    level = np.exp(np.random.default_rng(seed).normal(size=nodes) * spread)
    for node, share in slow.items():
        level[node] *= 1 - share
    return healthy(120, nodes, seed, 0.02) * level


@pytest.mark.parametrize("nodes", [16, 64])
def test_a_node_an_eighth_slower_from_birth_is_named_where_the_others_are_alike(nodes: int) -> None:
    """Chips that hardly differ are no sign of a heavy tail, however many there are."""
    for seed in range(4):
        assert {node for _, node in play(chips(nodes, 0.005, {7: 0.125}, seed)).accused()} == {"n7"}


def test_two_of_sixteen_that_are_slow_from_birth_by_different_shares_are_both_named() -> None:
    assert {node for _, node in play(chips(16, 0.01, {3: 0.25, 9: 0.5}, 1)).accused()} == {"n3", "n9"}


def test_several_nodes_that_are_slow_alike_from_birth_are_a_role_and_not_accused() -> None:
    fleets = [
        chips(64, spread, slow, seed)
        for spread in (0.0, 0.03)
        for seed in range(6)
        for slow in ({3: 0.25, 40: 0.25}, dict.fromkeys(range(8), 0.2))
    ]

    assert not any(play_each(fleets))


def test_two_nodes_that_are_slow_from_birth_by_different_shares_are_both_named() -> None:
    assert {node for _, node in play(chips(64, 0.02, {3: 0.25, 40: 0.45}, 1)).accused()} == {"n3", "n40"}


def test_chips_that_differ_by_ten_percent_are_not_slow_from_birth() -> None:
    assert not any(play_each([chips(nodes, 0.1, {}, seed) for nodes in (8, 64) for seed in range(6)]))


def test_two_peers_do_not_prove_that_a_third_node_is_slow_from_birth() -> None:
    assert play(chips(3, 0.0, {1: 0.3}, 1)).accused() == []


def test_a_job_that_did_nothing_for_a_while_leaves_no_evidence_against_its_slower_chips() -> None:
    rates = healthy(500, 4) * np.array([1.0, 0.93, 1.04, 1.02])
    rates[301:311] = 0.0

    assert play(rates).accused() == []


def test_classes_of_hardware_in_one_cohort_are_not_stragglers() -> None:
    rates = healthy(300, 16)
    rates[:, ::3] *= 0.5

    assert play(rates).accused() == []


def test_a_node_of_slower_hardware_that_is_well_again_is_cleared() -> None:
    rates = healthy(300, 12)
    rates[:, :4] *= 0.5
    rates[100:140, 0] *= 0.4

    assert play(rates).whats("n0") == ["accused", "recovering", "cleared"]


def test_when_a_large_part_is_slow_the_slow_ones_are_named_and_nobody_else() -> None:
    fleets = [healthy(400, 20), healthy(400, 20)]
    for rates, slow in zip(fleets, (10, 12), strict=True):
        rates[200:, :slow] /= 3

    half, most = play_each(fleets)

    assert {node for _, node in half} == {f"n{number}" for number in range(10)}
    assert {node for _, node in most} == {f"n{number}" for number in range(12)}


def test_nodes_that_become_slow_one_after_the_other_stay_accused() -> None:
    of_nodes = {3: 1, 4: 2, 6: 4, 8: 6}
    fleets = [healthy(840, nodes, noise=0.02) for nodes in of_nodes]
    for rates, slow in zip(fleets, of_nodes.values(), strict=True):
        for node in range(slow):
            rates[200 + 80 * node :, node] *= 0.75

    for played, slow in zip(play_side_by_side(fleets), of_nodes.values(), strict=True):
        assert [node for _, node in played.accused()] == [f"n{node}" for node in range(slow)]
        assert all(played.whats(f"n{node}") == ["accused"] for node in range(slow))


def test_a_job_that_slows_down_as_a_whole_is_reported_and_nobody_is_accused() -> None:
    rates = healthy(400, 16)
    rates[200:] *= 0.5

    played = play(rates)

    assert played.accused() == []
    assert played.jobs[0][1].severity == pytest.approx(0.5, abs=0.05)


def test_a_fault_after_a_new_phase_is_still_found() -> None:
    rates = healthy(500, 16)
    rates[200:] *= 0.5
    rates[300:350, 4] *= 0.6

    ((tick, node),) = play(rates).accused()

    assert (node, 300 <= tick <= 303) == ("n4", True)


def test_a_small_loss_soon_after_all_were_slowed_alike_is_named() -> None:
    fleets = [healthy(300, 16, seed, noise=0.02) for seed in range(4)]
    for rates in fleets:
        rates[200:] *= 0.8
        rates[220:, 4] *= 0.88

    for accused in play_each(fleets):
        ((tick, node),) = accused
        assert (node, 220 <= tick <= 226) == ("n4", True)


def test_a_flapping_node_has_one_episode_for_every_fault() -> None:
    rates = healthy(1000, 16)
    for start in (200, 400, 600, 800):
        rates[start : start + 60, 4] *= 0.6

    assert play(rates).whats("n4") == ["accused", "recovering", "cleared"] * 4


def test_a_straggler_that_falls_silent_is_not_cleared_by_its_silence() -> None:
    rates = healthy(400, 8)
    rates[200:, 4] *= 0.5
    rates[220:300, 4] = np.nan

    played = play(rates)

    assert played.whats("n4") == ["accused"]
    slot = played.detector.memory.slot(node_key("c", "n4"))
    assert slot is not None
    assert played.detector.verdict(slot).state is VerdictState.STRAGGLER


def test_nodes_that_restart_are_given_time_to_come_up() -> None:
    rates = healthy(400, 8)
    rates[200:230, 4] = np.nan
    rates[230:233, 4] *= np.array([0.2, 0.5, 0.8])

    assert play(rates).accused() == []


def ramp(ticks: int, constant: npt.ArrayLike) -> Matrix:
    """Speed while a job warms up, (ticks, nodes). `constant`: ticks, by node."""
    return np.asarray(1 - 0.5 * np.exp(-np.arange(ticks)[:, None] / np.atleast_1d(np.asarray(constant, float))))


def test_a_node_that_is_slower_after_its_job_has_started_again_is_named_and_not_learnt() -> None:
    fleets = []
    for rests, late in ((np.nan, 0), (np.nan, 10), (0.0, 0), (0.0, 10)):
        rates = healthy(700, 16, noise=0.02)
        rates[300:320] = rests
        rates[320:] *= ramp(380, 3)
        rates[320 + late :, 3] *= 0.9
        fleets.append(rates)

    for accused in play_each(fleets):
        ((tick, node),) = accused
        assert node == "n3"
        assert 320 < tick <= 360


def test_a_node_that_is_slow_in_short_phases_is_named() -> None:
    fleets = [healthy(900, 16, noise=0.02) for _ in range(2)]
    for rates, length in zip(fleets, (16, 24), strict=True):
        rates[120:][np.arange(780) // length % 2 == 1] *= 0.35
        rates[600:, 3] *= 0.88

    assert [{node for _, node in accused} for accused in play_each(fleets)] == [{"n3"}, {"n3"}]


def test_phases_that_change_nodes_differently_accuse_nobody() -> None:
    fleets = [healthy(900, nodes, noise=0.02) for nodes in (8, 64)]
    for rates in fleets:
        differs = np.random.default_rng(2).normal(0, 0.03, rates.shape[1])
        rates[np.arange(900) // 40 % 2 == 1] *= 0.35 * np.exp(differs)

    assert not any(play_each(fleets))


def test_nodes_that_come_back_with_their_job_have_time_to_warm_up() -> None:
    fleets = [healthy(500, 16, seed, noise=0.02) for seed in (1, 2, 3)]
    for seed, rates in enumerate(fleets, 1):
        rates[300:320] = np.nan
        rates[320:] *= ramp(180, np.random.default_rng(seed).uniform(1, 5, 16))

    assert not any(play_each(fleets))


def test_a_slow_node_does_not_recover_by_pauses_that_do_not_begin_in_one_tick() -> None:
    rates, dice = healthy(900, 16, noise=0.02), np.random.default_rng(4)
    rates[500:, 3] *= 0.8
    for start in range(90, 890, 60):
        for node, late in enumerate(dice.integers(0, 2, 16).tolist()):
            rates[start + late : start + late + int(dice.integers(2, 4)), node] *= 0.05
    played = play(rates)

    assert played.whats("n3") == ["accused"]
    slot = played.detector.memory.slot(node_key("c", "n3"))
    assert slot is not None
    assert played.detector.verdict(slot).severity == pytest.approx(0.2, abs=0.03)


def test_a_loss_that_comes_and_goes_becomes_one_episode() -> None:
    rates = healthy(1600, 16, noise=0.02)
    slow = np.arange(1600) % 80 < 20
    rates[slow & (np.arange(1600) >= 400), 3] *= 0.85

    found = [tick for tick, node in play(rates).accused() if node == "n3"]

    assert 400 <= found[0] <= 405
    assert len(found) <= 8, "of 15"
    assert max(found) < 1200


def test_a_node_that_is_idle_at_the_end_of_its_fault_has_not_paused() -> None:
    rates, idle = healthy(500, 8), np.zeros((500, 8), bool)
    rates[200:212, 3], idle[208:212, 3] = 0.0, True
    rates[400:, 5] *= 0.5

    played = play(rates, idle=idle)

    assert [node for _, node in played.accused()] == ["n3", "n5"]
    assert played.accused()[1][0] <= 402


def test_everybody_restarting_accuses_nobody() -> None:
    rates = healthy(400, 8)
    rates[200:230] = np.nan
    for node in range(8):
        rates[230 + node % 3 : 234 + node % 3, node] *= 0.3

    assert play(rates).accused() == []


def test_what_nodes_do_while_their_job_starts_again_accuses_nobody() -> None:
    fleets = []
    for most in (0.1, 2.0):
        for seed in range(6):
            rates = healthy(240, 32, seed)
            for start in (60, 120, 180):
                rates[start : start + 10] = np.random.default_rng(start + seed).random((10, 32)) * most
            fleets.append(rates)

    assert not any(play_each(fleets))


def restarting(nodes: int, what: str, seed: int = 3) -> tuple[Matrix, npt.NDArray[np.bool_]]:
    """Three restarts of a job: nodes stop within a tick and begin again over up to eight ticks, then ramp up."""
    rng = np.random.default_rng(seed)
    rates, idle = healthy(800, nodes, seed), np.zeros((800, nodes), bool)
    for start in (200, 400, 600):
        for node in range(nodes):
            gone = slice(start + int(rng.integers(0, 2)), start + 40 + int(rng.integers(0, 9)))
            length = gone.stop - gone.start
            share = {"rest": 0.0, "idle": 0.0, "little": 0.02, "anything": 1.0}[what]
            rates[gone, node] *= share * rng.uniform(0, 1, length)
            idle[gone, node] = what == "idle"
            rates[gone.stop : gone.stop + 3, node] *= (0.2, 0.5, 0.9)
    return rates, idle


def test_nodes_that_follow_their_restarted_job_later_than_others_are_not_accused() -> None:
    kinds = ("rest", "idle", "little", "anything")
    rates, idle = zip(*(restarting(nodes, what) for nodes in (8, 64) for what in kinds), strict=True)

    assert not any(played.accused() for played in play_side_by_side(rates, idle=idle))


def test_a_node_that_does_not_follow_its_restarted_job_is_named() -> None:
    (rests, never), (idles, idle) = restarting(8, "rest"), restarting(8, "idle")
    rests[240:330, 5] = idles[240:330, 5] = 0.0
    idle[240:330, 5] = True

    for played in play_side_by_side([rests, idles], idle=[never, idle]):
        ((tick, node),) = played.accused()
        assert node == "n5" and tick <= 240 + 8 + 16


def test_a_job_that_rests_for_long_is_judged_as_before_when_it_works_again() -> None:
    rates = healthy(2600, 8)
    rates[200:2300] = 0.0
    rates[2400:, 3] *= 0.7

    ((tick, node),) = play(rates).accused()

    assert node == "n3" and 2401 <= tick <= 2403


def test_nodes_that_stop_one_after_the_other_because_their_job_ends_are_accused_once_at_most() -> None:
    rates, idle = healthy(900, 4), np.zeros((900, 4), bool)
    for start in range(100, 900, 100):
        for node in range(4):
            rates[start + node : start + 40, node], idle[start + node : start + 40, node] = 0.0, True

    assert len(play(rates, idle=idle).accused()) <= 1


def test_a_phase_with_a_hundredth_of_the_rate_is_followed_and_its_straggler_is_named() -> None:
    rates = healthy(240, 8)
    rates[60:] *= 0.01
    rates[180:, 3] *= 0.6

    ((tick, node),) = play(rates).accused()

    assert node == "n3" and 181 <= tick <= 184


def test_in_a_cohort_of_one_or_two_nobody_is_accused() -> None:
    for nodes in (1, 2):
        rates = healthy(400, nodes)
        rates[200:, 0] *= 0.3
        assert play(rates).accused() == []


def test_equal_values_and_zeros_are_borne() -> None:
    same = np.full((200, 6), 7.0)
    nothing = np.zeros((200, 6))

    assert play(same).accused() == []
    assert play(nothing).accused() == []


def test_small_cohorts_merge_by_what_may_be_dropped_and_say_so() -> None:
    rates = healthy(300, 4)
    rates[200:, 0] *= 0.5
    cohorts = [("c", "train", "job", "H100", "0"), ("c", "train", "job", "H100", "1")]

    merged = play(rates, cohorts=cohorts, cohort=np.array([0, 0, 1, 1]), detector=Detector(Parameters(), (3, 4)))
    apart = play(rates, cohorts=cohorts, cohort=np.array([0, 0, 1, 1]))

    assert [node for _, node in merged.accused()] == ["n0"]
    assert merged.edges[0][1].verdict.merged is True
    assert apart.accused() == []


@pytest.mark.parametrize(("level", "left", "named"), [(150, 0.6, ["n5"]), (60, 1.0, []), (60, 0.6, ["n5"])])
def test_a_single_node_of_another_model_is_judged_by_its_own_history_only(
    level: float, left: float, named: list[str]
) -> None:
    rates = healthy(400, 6)
    rates[:, 5] *= level / 100
    rates[200:, 5] *= left
    cohorts = [("c", "job", "H100"), ("c", "job", "A100")]

    played = play(rates, cohorts=cohorts, cohort=np.array([0] * 5 + [1]), detector=Detector(Parameters(), (2,)))

    assert [node for _, node in played.accused()] == named
    assert all(edge.verdict.kind is Kind.SLOW and edge.verdict.merged for _, edge in played.edges)


def test_a_node_that_moves_to_another_job_is_learnt_anew() -> None:
    rates = healthy(300, 8)
    rates[150:, 0] *= 0.4
    cohorts = [("c", "one"), ("c", "two")]
    before, after = np.zeros(8, np.int64), np.array([1] + [0] * 7)

    played = play(rates[:150], cohorts=cohorts, cohort=before)
    later = play(rates[150:], cohorts=cohorts, cohort=after, detector=played.detector, first=150)

    assert played.accused() + later.accused() == []


def polled_early(rates: np.ndarray[Any, Any], tick: int, node: int, value: float) -> Detector:
    """A detector after so many ticks and, half an interval later, an early poll of one node."""
    nodes = rates.shape[1]
    detector = play(rates[:tick]).detector
    values, state = rates[tick - 1].copy(), np.full(nodes, HELD, np.uint8)
    values[node], state[node] = value, ACTIVE
    names = [node_key("c", f"n{number}") for number in range(nodes)]
    seen = Observation(names, np.zeros(nodes, np.int64), [("c", "")], values, state)
    detector.tick(1000 + (tick - 0.5) * TICK, seen)
    return detector


def test_an_early_poll_counts_as_the_first_of_two_that_confirm_a_collapse() -> None:
    rates = healthy(200, 3)
    rates[150:, 1] *= 0.1

    played = play(rates[150:], detector=polled_early(rates, 150, 1, 10.0), first=150)

    assert played.accused() == [(150, "n1")]
    assert play(rates).accused() == [(151, "n1")]


def test_an_early_poll_accuses_nobody_when_the_next_tick_is_well() -> None:
    rates = healthy(400, 8)

    assert play(rates[150:], detector=polled_early(rates, 150, 1, 1.0), first=150).accused() == []


def test_an_early_poll_leaves_what_is_known_of_the_others_as_it_was() -> None:
    rates = healthy(200, 8)
    rates[149, 5] *= 0.4
    plain = play(rates[:150]).detector.memory

    after = polled_early(rates, 150, 1, 10.0).memory

    others = [number for number in range(8) if number != 1]
    for name in (
        "state",
        "slow",
        "fast",
        "below",
        "run",
        "baseline",
        "own",
        "count",
        "spell",
        "shortfall",
        "previous",
    ):
        assert np.array_equal(after.node(name)[others], plain.node(name)[others], equal_nan=True), name
    for name in ("level", "scale", "moved", "ticks"):
        assert np.array_equal(after.group(name), plain.group(name)), name


def test_a_whole_job_that_stops_between_ticks_accuses_nobody_for_an_early_poll() -> None:
    rates = healthy(200, 8)
    rates[150:] *= 0.02

    assert play(rates[150:], detector=polled_early(rates, 150, 1, 2.0), first=150).accused() == []


def test_the_same_inputs_give_the_same_bytes() -> None:
    rates = healthy(400, 8)
    rates[200:, 4] *= 0.6

    one, two = play(rates), play(rates)

    assert one.digest == two.digest
    assert [edge.verdict.encode() for _, edge in one.edges] == [edge.verdict.encode() for _, edge in two.edges]
    rates[0, 0] += 1e-9
    assert play(rates).digest != one.digest


def test_a_restored_detector_goes_on_as_if_nothing_had_happened() -> None:
    rates = healthy(400, 8)
    rates[200:300, 4] *= 0.6
    whole = play(rates)

    first = play(rates[:250])
    second = Detector(Parameters(tick_seconds=TICK))
    second.restore(first.detector.snapshot())
    rest = play(rates[250:], detector=second, first=250)

    assert rest.digest == whole.digest
    assert first.whats("n4") + rest.whats("n4") == whole.whats("n4")


def test_a_snapshot_survives_settings_that_change_no_meaning_of_what_was_learnt() -> None:
    rates = healthy(300, 8)
    rates[260:, 4] *= 0.5
    data = play(rates[:250]).detector.snapshot()

    second = Detector(Parameters(tick_seconds=TICK, budget=1e-3, max_nodes=50))
    second.restore(data)
    rest = play(rates[250:], detector=second, first=250)

    assert [node for _, node in rest.accused()] == ["n4"] and rest.accused()[0][0] < 265  # without learning anew
    same = Detector(Parameters(tick_seconds=TICK))
    same.restore(data)
    assert play(rates[250:], detector=same, first=250).digest != rest.digest


def test_fewer_nodes_than_in_a_snapshot_are_those_seen_last_and_the_rest_is_counted() -> None:
    rates = healthy(100, 8)
    rates[90:, :3] = np.nan
    smaller = Detector(Parameters(tick_seconds=TICK, max_nodes=5))

    smaller.restore(play(rates).detector.snapshot())

    assert {node for _, node in smaller.memory._slots} == {f"n{number}" for number in range(3, 8)}
    assert (len(smaller.memory), smaller.memory.dropped_nodes) == (5, 3)
    again = Detector(Parameters(tick_seconds=TICK, max_nodes=5))
    again.restore(smaller.snapshot())
    assert again.snapshot() == smaller.snapshot()
    assert not play(healthy(100, 8)[:, 3:], detector=smaller, first=100).accused()


@pytest.mark.parametrize(
    ("other", "continued", "words"),
    [
        ({"tick_seconds": 2 * TICK}, False, f"tick_seconds was {TICK} and is {2 * TICK}"),
        ({"own_band": 0.1}, False, "own_band was 0.05 and is 0.1"),
        ({"max_nodes": 50}, True, "max_nodes was 200000 and is 50"),
    ],
)
def test_a_snapshot_of_another_meaning_is_refused_with_what_changed(
    other: dict[str, Any], continued: bool, words: str
) -> None:
    detector = Detector(Parameters(**{"tick_seconds": TICK, **other}))
    before = detector.snapshot()

    with pytest.raises(SnapshotError, match=re.escape(words)):
        detector.restore(play(healthy(50, 8)).detector.snapshot(), continued=continued)

    assert detector.snapshot() == before


def test_the_time_between_a_snapshot_and_the_next_tick_is_no_silence_of_nodes() -> None:
    rates = healthy(300, 8)
    rates[282:, 4] *= 0.5

    second = Detector(Parameters(tick_seconds=TICK))
    second.restore(play(rates[:250]).detector.snapshot())

    assert play(rates[280:], detector=second, first=280).accused() == [(283, "n4")]


def older_snapshot(data: bytes, version: int, without: tuple[str, ...], **changed: Any) -> bytes:
    """A snapshot as an earlier version wrote it: without some columns, and with others filled with values."""
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files if name not in without}
    for name, values in changed.items():
        arrays[name][:] = values
    about = json.loads(arrays["names"].tobytes())
    arrays["names"] = np.frombuffer(json.dumps({**about, "version": version}).encode(), np.uint8)
    older = io.BytesIO()
    np.savez(older, **arrays)
    return older.getvalue()


def test_a_snapshot_of_the_version_before_is_continued_without_learning_anew() -> None:
    rates = healthy(300, 8)
    rates[260:, 4] *= 0.5

    second = Detector(Parameters(tick_seconds=TICK))
    second.restore(older_snapshot(play(rates[:250]).detector.snapshot(), 3, ("node_steep",)))

    assert play(rates[250:], detector=second, first=250).accused() == [(261, "n4")]


def test_a_snapshot_that_version_8_wrote_is_continued_without_learning_anew() -> None:
    """Its file holds eight nodes after fifty ticks of `healthy(50, 8)`."""
    rates = healthy(80, 8)
    rates[60:, 4] *= 0.5

    second = Detector(Parameters(tick_seconds=TICK))
    second.restore(gzip.decompress((Path(__file__).parent / "snapshot_version_8.npz.gz").read_bytes()))

    assert play(rates[50:], detector=second, first=50).accused() == [(61, "n4")]


def test_a_snapshot_of_version_7_within_a_new_phase_adds_nothing_of_the_warm_up_to_the_baselines() -> None:
    rates = healthy(300, 8)
    newer = ("node_last_steps", "group_learnt", "group_back")
    sofar = [0.3] * 4 + [0.0] * 4

    second = Detector(Parameters(tick_seconds=TICK))
    data = play(rates[:250]).detector.snapshot()
    second.restore(older_snapshot(data, 7, newer, node_sofar=sofar, node_relearn=20))

    assert play(rates[250:], detector=second, first=250).accused() == []


@pytest.mark.parametrize("at", [0, 100, 5000, -200])
def test_a_damaged_snapshot_is_refused_and_harms_nothing(at: int) -> None:
    played = play(healthy(100, 8))
    data = bytearray(played.detector.snapshot())
    data[at : at + 40 or None] = b"\xff" * 40
    fresh = Detector(Parameters(tick_seconds=TICK))
    before = fresh.snapshot()

    with pytest.raises(SnapshotError):
        fresh.restore(bytes(data))

    assert fresh.snapshot() == before


def test_without_a_snapshot_an_echoed_accusation_holds_until_the_node_is_proven_well() -> None:
    ill = healthy(200, 8)
    ill[:, 4] *= 0.6
    ill[100:, 4] /= 0.6

    played = play(ill, echo={4: float(-np.log(0.6))})

    assert played.whats("n4") == ["accused", "recovering", "cleared"]
    assert played.edges[1][0] >= 100


def test_an_echo_of_a_node_that_is_well_again_is_cleared_after_the_warm_up() -> None:
    played = play(healthy(100, 8), echo={4: float(-np.log(0.6))})

    assert played.whats("n4") == ["accused", "recovering", "cleared"]
    assert 30 <= played.edges[1][0] <= 40


def test_memory_is_bounded_and_forgets() -> None:
    detector = Detector(Parameters(tick_seconds=TICK, max_nodes=5, forget_hours=0.1))
    play(healthy(10, 8), detector=detector)
    assert (len(detector.memory), detector.memory.dropped_nodes > 0) == (5, True)

    play(np.zeros((200, 0)), detector=detector, first=10)

    assert len(detector.memory) == 0


def test_it_does_not_matter_who_of_a_cohort_reports_in_which_tick() -> None:
    rates = healthy(400, 4)
    rates[:, 3] *= 0.5
    rates[np.random.default_rng(2).random(rates.shape) < 0.5] = np.nan

    assert {node for _, node in play(rates).accused()} <= {"n3"}


@pytest.mark.parametrize("change", [{"digest": "not hex"}, {"ticks": "many"}, {"parameters": {}}])
def test_a_snapshot_with_damaged_facts_leaves_the_detector_as_it_was(change: dict[str, Any]) -> None:
    detector = Detector()
    facts = {
        "parameters": asdict(detector.parameters), "mergeable": [], "ticks": 5, "node_hours": 1.0, "now": 50.0,
        "digest": "00", **change,
    }  # fmt: skip
    before = detector.memory

    with pytest.raises(SnapshotError):
        detector.restore(Detector().memory.snapshot(facts))

    assert (detector.memory is before, detector.ticks, detector.node_hours) == (True, 0, 0.0)


ADAPTS: Final = 120 * 5 / 3600
"""Hours of a baseline that adapts within 120 ticks."""


def with_more_load_for_a_while(times: float, then: float, seed: int, also: int | None = None) -> Matrix:
    """Rates of twelve nodes, of which n3, and another one, do `times` as much for 300 ticks."""
    rates = healthy(1000, 12, seed)
    rates[300:600, 3] *= times
    rates[600:, 3] *= then
    if also is not None:
        rates[300:600, also] *= times
    return rates


def of_a_day(seed: int, response: float) -> Matrix:
    """Two days of rates every five minutes: the load falls to a third and rises again, and each node follows it
    more or less by `response`, a standard deviation of exponents."""
    rng, day = np.random.default_rng(seed), np.arange(576) / 288
    load = np.log(0.65 + 0.35 * np.sin(2 * np.pi * day))
    factors = 1 + response * rng.normal(size=16)
    rates: Matrix = 1000 * np.exp(load[:, None] * factors + 0.02 * rng.normal(size=(576, 16)))
    return rates


def test_a_load_that_follows_the_day_hides_no_loss() -> None:
    starts = (300, 400, 500)
    fleets = [of_a_day(start, 0.0) for start in starts]
    for rates, start in zip(fleets, starts, strict=True):
        rates[start:, 4] *= 0.9

    for played, start in zip(play_side_by_side(fleets, seconds=300.0), starts, strict=True):
        ((tick, node),) = played.accused()
        assert node == "n4"
        assert tick - start <= 5


def test_nodes_that_follow_a_load_more_or_less_are_not_accused() -> None:
    fleets = [of_a_day(seed, 0.04) for seed in range(4)]

    assert not any(played.accused() for played in play_side_by_side(fleets, seconds=300.0))


def test_a_node_that_had_more_load_for_hours_and_is_back_among_its_peers_is_not_accused() -> None:
    fleets = [with_more_load_for_a_while(times, 1.0, seed) for times in (1.2, 1.5, 2.5) for seed in range(4)]

    assert not any(play_each(fleets, baseline_hours=ADAPTS))


def test_a_node_that_had_more_load_and_falls_below_its_peers_is_accused() -> None:
    for found in play_each([with_more_load_for_a_while(1.2, 0.9, seed) for seed in range(3)], baseline_hours=ADAPTS):
        ((tick, node),) = found

        assert node == "n3"
        assert 600 <= tick < 610


def test_two_nodes_that_were_ahead_are_another_kind_and_are_accused_of_what_they_lose() -> None:
    assert {
        node for _, node in play(with_more_load_for_a_while(1.3, 1.0, 1, also=4), baseline_hours=ADAPTS).accused()
    } == {
        "n3",
        "n4",
    }


def test_a_second_kind_of_hardware_that_a_new_phase_costs_more_is_not_accused() -> None:
    """Of 16 nodes four, which no label tells apart, lose another 8 % when the job enters another phase."""
    rates = healthy(500, 16, 5, noise=0.02)
    rates[:, 12:] *= 0.4
    rates[300:] *= 0.8
    rates[300:, 12:] *= 0.92

    assert play(rates).accused() == []


def test_a_straggler_that_drags_all_others_along_is_named_at_once() -> None:
    fleets = []
    for lost, others in ((0.2, 0.1), (0.3, 0.2), (0.5, 0.3)):
        rates = healthy(400, 16, 5, noise=0.02)
        rates[300:] *= 1 - others
        rates[300:, 3] *= (1 - lost) / (1 - others)
        fleets.append(rates)

    for accused in play_each(fleets):
        ((tick, node),) = accused
        assert node == "n3"
        assert tick <= 303


def test_a_fleet_whose_load_falls_to_a_tenth_every_night_accuses_nobody() -> None:
    """Noise of 15 % and 288 ticks a day: at dusk the level moves on while some nodes are still near the old one."""
    load = 1 - 0.9 * (0.5 + 0.5 * np.cos(2 * np.pi * np.arange(288 * 3) / 288))
    fleets = [load[:, None] * healthy(len(load), 12, seed, noise=0.15) for seed in (2, 7)]

    assert not any(play_each(fleets, baseline_hours=30 * 5 / 3600))


def test_nodes_that_follow_a_move_of_all_by_a_few_percent_more_or_less_are_not_accused() -> None:
    """A cap on the power of all chips costs them 15 % and then 30 %, give or take what each chip needs."""
    fleets = [healthy(500, 40, seed=seed, noise=0.02) for seed in range(5, 9)]
    for seed, rates in enumerate(fleets, 5):
        rng = np.random.default_rng(seed)
        rates[100:220] *= 0.85 * np.exp(0.03 * rng.normal(size=40))
        rates[350:450] *= 0.7 * np.exp(0.03 * rng.normal(size=40))

    assert sum(map(len, play_each(fleets))) <= 1


def test_a_node_that_comes_up_over_some_ticks_after_a_short_restart_is_not_accused() -> None:
    fleets = [healthy(240, 8, seed=3, noise=0.02) for _ in range(3)]
    for missed, rates in enumerate(fleets):
        for start in range(60, 240, 60):
            up = start + missed
            rates[start:up, 3] = np.nan
            rates[up : up + 5, 3] *= [0.2, 0.4, 0.6, 0.8, 0.9]

    assert not any(play_each(fleets))


def test_a_node_that_comes_up_to_half_of_its_rate_only_is_named_when_it_no_longer_rises() -> None:
    fleets = [healthy(130, 8, seed=3, noise=0.02) for _ in range(3)]
    for missed, rates in enumerate(fleets):
        rates[100 - missed : 100, 3] = np.nan
        rates[100:, 3] *= 0.5
        rates[100:102, 3] *= [0.3, 0.7]

    for accused in play_each(fleets):
        ((tick, node),) = accused
        assert (node, tick <= 104) == ("n3", True)


def test_a_loss_that_begins_with_a_missed_report_and_stays_is_named_on_its_second_tick() -> None:
    fleets = [healthy(130, 8, seed=3, noise=0.02) for _ in range(3)]
    for rates, left in zip(fleets, (0.1, 0.45, 0.7), strict=True):
        rates[99, 3] = np.nan
        rates[100:, 3] *= left

    assert play_each(fleets) == [[(101, "n3")]] * 3


def test_a_loss_that_falls_and_rises_by_turns_is_named() -> None:
    fleets = [healthy(130, 8, seed=3, noise=0.02) for _ in range(3)]
    for rates, (lower, higher) in zip(fleets, ((0.2, 0.6), (0.3, 0.85), (0.6, 0.85)), strict=True):
        rates[100::2, 3] *= lower
        rates[101::2, 3] *= higher

    for accused in play_each(fleets):
        (tick, node), *_ = accused
        assert (node, tick <= 108) == ("n3", True)
