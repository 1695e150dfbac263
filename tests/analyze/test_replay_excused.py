"""Accusations that the rest of the history explains: nodes that come up, slowdowns of all, losses that all have."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main
from ingero_testing.replays import replayed, shown_twice

Rates = npt.NDArray[np.float64]


def healthy(ticks: int = 300, nodes: int = 12, seed: int = 1) -> Rates:
    return np.asarray(100 * np.exp(0.015 * np.random.default_rng(seed).normal(size=(ticks, nodes))))


def written(folder: Path, rates: Rates, jobs: npt.NDArray[np.int64] | None = None, apart: int = 30) -> str:
    """Rows `apart` seconds apart of nodes n0, n1, ...; without a number there is no row."""
    lines = [
        f"{apart * tick},n{node},{rates[tick, node]:.4f}" + ("" if jobs is None else f",{jobs[tick, node]}") + "\n"
        for tick, node in np.argwhere(np.isfinite(rates)).tolist()
    ]
    head = "time,node,rate" + ("" if jobs is None else ",job_id")
    (folder / "history.csv").write_text(head + "\n" + "".join(lines))
    return str(folder / "history.csv")


def judged(folder: Path, rates: Rates, jobs: npt.NDArray[np.int64] | None = None, apart: int = 30) -> dict[str, Any]:
    return replayed(written(folder, rates, jobs, apart))


def named(found: dict[str, Any], what: str = "") -> list[str]:
    return sorted({one["node"] for one in (found["summary"][what] if what else found["episodes"])})


def restarted(late: int) -> Rates:
    """All nodes do nothing from tick 150 to 165; n3 goes on doing nothing until `late`, and comes up in ten ticks."""
    rates = healthy()
    rates[150:165] = 0
    rates[165:late, 3] = 0
    rates[late : late + 10, 3] *= np.linspace(0.1, 0.9, 10)
    return rates


def test_a_node_that_comes_up_later_than_its_peers_is_said_and_not_accused(tmp_path: Path) -> None:
    found, table = shown_twice(written(tmp_path, restarted(180)))

    assert (named(found), named(found, "came_up")) == ([], ["n3"])
    assert "nobody was accused" in table.stdout and "came up later or more slowly than its peers" in table.stdout


def test_a_node_that_starts_again_alone_has_the_same_time(tmp_path: Path) -> None:
    rates = healthy()
    rates[150:170, 3] = np.nan
    rates[170:190, 3] *= 0.7

    assert named(judged(tmp_path, rates)) == []


@pytest.mark.parametrize("how", ["stops by itself", "is slow after the restart", "comes up far too late"])
def test_a_node_that_is_no_late_starter_is_accused(tmp_path: Path, how: str) -> None:
    rates = restarted(165)
    if how == "stops by itself":
        rates[220:230, 3] = 0
    elif how == "is slow after the restart":
        rates[165:, 3] *= 0.7
    else:
        rates = restarted(240)

    assert named(judged(tmp_path, rates)) == ["n3"]


def test_a_node_that_came_up_and_then_loses_its_speed_for_a_while_is_accused(tmp_path: Path) -> None:
    rates = healthy()
    rates[150:165] = 0
    rates[172:185, 3] *= 0.6

    found = judged(tmp_path, rates)

    assert (named(found), named(found, "came_up")) == (["n3"], [])


def slowed(shares: dict[int, float]) -> Rates:
    """All nodes lose a third from tick 150 to 210, some of them more."""
    rates = healthy()
    rates[150:210] *= 0.67
    for node, share in shares.items():
        rates[150:210, node] *= share
    return rates


def test_nodes_that_follow_a_slowdown_of_all_unevenly_are_not_accused(tmp_path: Path) -> None:
    found = judged(tmp_path, slowed({2: 0.7, 3: 0.75, 7: 0.65}))

    assert (named(found), named(found, "uneven")) == ([], ["n2", "n3", "n7"])


@pytest.mark.parametrize("until", [210, 300])
def test_a_node_alone_that_lost_no_more_than_shares_in_a_move_of_all_differ_by_is_not_accused(
    tmp_path: Path, until: int
) -> None:
    rates = healthy()
    rates[150:until] *= 0.67 * np.exp(np.append(np.random.default_rng(4).normal(0, 0.03, 11), -0.13))

    found = judged(tmp_path, rates)

    assert (named(found), named(found, "uneven")) == ([], ["n11"])


def test_a_node_of_three_that_stops_for_good_after_a_move_of_all_is_accused(tmp_path: Path) -> None:
    rates = healthy()[:, :3]
    rates[150:] *= 0.75
    rates[170:, 1] *= 0.0002

    assert named(judged(tmp_path, rates)) == ["n1"]


def test_a_node_of_a_rack_that_followed_a_move_of_all_otherwise_is_not_accused_against_its_peers(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng([56, 5, 4])
    rng.choice(7), rng.choice(3), rng.choice(3)
    noise = rng.normal(0, 0.02, (400, 32)) + rng.normal(0, 0.03, 32)
    rng.integers(100, 220), rng.random(), rng.choice(7)
    shares = rng.normal(0, 0.01, 32)
    shares[:6] -= rng.uniform(0.08, 0.16)
    noise[111:] += np.log(0.6) + shares

    found = judged(tmp_path, 100 * np.exp(noise[:190]), apart=15)

    assert (named(found), named(found, "uneven")) == ([], [f"n{node}" for node in range(6)])


@pytest.mark.parametrize("how", ["alone", "far worse", "goes on"])
def test_a_straggler_in_a_slowdown_of_all_is_accused(tmp_path: Path, how: str) -> None:
    rates = slowed({3: 0.6})
    if how == "far worse":
        rates = slowed({2: 0.75, 3: 0.3, 7: 0.75})
    elif how == "goes on":
        rates[210:, 3] *= 0.6

    assert named(judged(tmp_path, rates)) == ["n3"]


@pytest.mark.parametrize(
    ("nodes", "ticks", "rate", "job"),
    [(5, 40, 0.8, True), (4, 40, 0.8, True), (3, 40, 0.8, False), (5, 70, 0.8, False), (6, 40, 0.33, False),
     (7, 100, 0.33, False)],
)  # fmt: skip
def test_what_many_nodes_lose_for_a_while_together_is_their_jobs(
    tmp_path: Path, nodes: int, ticks: int, rate: float, job: bool
) -> None:
    rates = healthy(180)
    rates[80 : 80 + ticks, :nodes] *= rate
    rates[60:, 11] *= 0.8

    found = judged(tmp_path, rates)

    lost = [f"n{node}" for node in range(nodes)]
    assert (named(found), named(found, "together")) == (["n11"], lost) if job else ([*lost, "n11"], [])


@pytest.mark.parametrize("jobs", [True, False])
def test_what_nodes_lose_that_always_fall_together_is_their_jobs(tmp_path: Path, jobs: bool) -> None:
    """Pairs of nodes pause at times of their own, one loses for long, and a node of another; or only one pauses."""
    rates = healthy(200, 8)
    for pair in range(4 if jobs else 1):
        for begin in range(34 + 7 * pair, 200, 40):
            rates[begin : begin + 4, 2 * pair : 2 * pair + 2] *= 0.3
    rates[120:, 0:2] *= 0.7
    rates[130:, 6] *= 0.7

    found = judged(tmp_path, rates)

    assert set(named(found)) == ({"n6"} if jobs else {"n0", "n1", "n6"})
    assert ("n0" in named(found, "together")) is jobs


@pytest.mark.parametrize("share", [True, False])
def test_what_nodes_of_like_noise_lose_together_is_their_jobs(tmp_path: Path, share: bool) -> None:
    """Pairs of nodes share their noise, or follow a common load alike; one pair loses, and a node of another."""
    rates = healthy(160, 8)
    common = np.random.default_rng(2).normal(0, 0.02, (160, 4)) if share else np.zeros((160, 4))
    if not share:
        common += 0.1 * np.sin(np.arange(160) / 9)[:, None] * (1 + np.arange(4) / 30)
    rates *= np.exp(np.repeat(common, 2, axis=1))
    rates[100:, 0:2] *= 0.7
    rates[110:, 5] *= 0.7

    found = judged(tmp_path, rates)

    assert (named(found), named(found, "together")) == ((["n5"], ["n0", "n1"]) if share else (["n0", "n1", "n5"], []))


def test_what_nodes_of_one_named_job_lose_together_is_theirs(tmp_path: Path) -> None:
    rates = healthy(150)
    rates[80:110, :6] *= 0.8

    assert named(judged(tmp_path, rates, np.zeros(rates.shape, np.int64))) == [f"n{node}" for node in range(6)]


def test_a_loss_that_half_of_the_peers_have_as_well_tells_nothing_about_a_node(tmp_path: Path) -> None:
    """Every node pauses for three ticks at its own time."""
    rates = healthy()
    for node in range(12):
        rates[60 + 17 * node : 63 + 17 * node, node] *= 0.5
    found = judged(tmp_path, rates)

    assert named(found) == [] and named(found, "shared")

    rates[240:270, 5] *= 0.5
    assert named(judged(tmp_path, rates)) == ["n5"]


def test_a_loss_is_compared_without_the_ticks_in_which_its_node_was_well_again(tmp_path: Path) -> None:
    """Nodes that were accused again and again must be well for long before they are cleared."""
    rates = healthy(600, 8)
    for begin in range(33, 600, 75):
        nodes = slice(0, 4) if begin % 150 == 33 else slice(4, 8)
        rates[begin : begin + 5, nodes] *= 0.1

    assert named(judged(tmp_path, rates)) == []


def test_a_loss_that_the_worst_of_the_peers_make_likely_is_chance(tmp_path: Path) -> None:
    """Rates that wander below a ceiling, at which they stand for long."""
    wander, change = np.zeros((300, 12)), np.random.default_rng(11).normal(0, 0.013, (300, 12))
    for tick in range(1, 300):
        wander[tick] = 0.9 * wander[tick - 1] + change[tick]
    rates = np.minimum(100.0, np.round(96 * np.exp(wander + 0.1 * np.sin(np.arange(300) / 40)[:, None])))
    found = judged(tmp_path, rates)

    assert (named(found), named(found, "shared")) == ([], ["n8"])

    rates[150:180, 3] *= 0.75
    assert named(judged(tmp_path, rates)) == ["n3"]


def test_two_faulty_nodes_are_no_chance_for_each_other(tmp_path: Path) -> None:
    """Both lose 40 % for four ticks, four times and together, and nobody else loses anything."""
    rates = healthy(400)
    for begin in (90, 157, 231, 318):
        rates[begin : begin + 4, [3, 8]] *= 0.6
    found = judged(tmp_path, rates)

    assert (sorted(set(named(found))), named(found, "shared")) == (["n3", "n8"], [])


def work_of_jobs() -> tuple[Rates, npt.NDArray[np.int64]]:
    """Jobs of four of 16 nodes that take 60 to 120 ticks, each with its own rate."""
    random = np.random.default_rng(4)
    rates, jobs = np.full((600, 16), np.nan), np.zeros((600, 16), np.int64)
    free = np.zeros(16, np.int64)
    number = 0
    for tick in range(600):
        idle = random.permutation(np.flatnonzero(free <= tick))
        while len(idle) >= 4:
            nodes, idle, number = idle[:4], idle[4:], number + 1
            end = min(600, tick + int(random.integers(60, 120)))
            level = np.exp(random.normal(4, 0.8))
            rates[tick:end, nodes] = level * np.exp(0.015 * random.normal(size=(end - tick, len(nodes))))
            jobs[tick:end, nodes] = number
            free[nodes] = end
    return rates, jobs


def test_nobody_is_accused_among_nodes_of_jobs_that_no_column_tells_apart(tmp_path: Path) -> None:
    rates, jobs = work_of_jobs()
    without, labelled = judged(tmp_path, rates), judged(tmp_path, rates, jobs)
    always_together = {f"n{node}" for node in range(16) if (jobs[:, node] == jobs[:, 5]).all()}

    assert len(always_together) == 4  # these can be compared with each other
    assert named(without) == []
    assert without["summary"]["cohorts"] == 4 and not without["summary"]["doubts"]
    assert named(labelled) == [] and not labelled["summary"]["different_work"] and not labelled["summary"]["doubts"]


def halves(until: int = 600) -> tuple[Rates, npt.NDArray[np.int64]]:
    """Two jobs of six nodes each follow one another on each half, each at its own rate, two ticks apart."""
    rates, jobs = healthy(600), np.zeros((600, 12), np.int64)
    for half, starts in ((slice(0, 6), (150, 330, 470)), (slice(6, 12), (210, 400))):
        for number, (start, level) in enumerate(zip(starts, (0.78, 1.2, 0.85), strict=False), start=1):
            if start < until:
                rates[start:, half] *= level
                rates[start - 2 : start, half] = np.nan
                jobs[start:, half] = number
    return rates, jobs


def test_nobody_is_accused_among_two_jobs_that_no_column_tells_apart(tmp_path: Path) -> None:
    rates = healthy(400)
    for start, level in ((100, 0.78), (200, 1.15), (300, 0.8)):
        rates[start:, :6] *= level
        rates[start - 2 : start, :6] = np.nan
    found = judged(tmp_path, rates)

    assert named(found) == [] and len(named(found, "different_work")) == 12
    assert any("add a column 'job_id'" in doubt for doubt in found["summary"]["doubts"])


def test_two_jobs_that_gain_and_lose_against_each_other_are_judged_by_themselves(tmp_path: Path) -> None:
    rates = healthy(130)
    for start, half, level in ((50, slice(0, 6), 0.78), (90, slice(6, 12), 0.6)):
        rates[start:, half] *= level
        rates[start - 2 : start, half] = np.nan
    found = judged(tmp_path, rates)

    assert named(found) == [] and not found["summary"]["different_work"] and found["summary"]["cohorts"] == 2


def test_nodes_that_came_back_together_at_another_rate_are_said_and_not_accused(tmp_path: Path) -> None:
    found, table = shown_twice(written(tmp_path, halves(until=300)[0]))

    assert named(found) == [] and not found["summary"]["different_work"]
    assert set(named(found, "other_job")) <= {f"n{node}" for node in range(12)} and named(found, "other_job")
    assert "came back together with others at a rate that had changed for all of these" in table.stdout


def rebooted(slow: slice) -> Rates:
    """Three racks of four nodes are silent for five ticks, each four times, and warm up for six; some nodes of the
    second one are slow since."""
    rates = healthy(600)
    for time in range(4):
        for rack in range(3):
            start, nodes = 60 + 120 * time + 40 * rack, slice(4 * rack, 4 * rack + 4)
            rates[start : start + 5, nodes] = np.nan
            rates[start + 5 : start + 11, nodes] *= np.linspace(0.4, 0.9, 6)[:, None]
    rates[345:, slow] *= 0.75
    return rates


@pytest.mark.parametrize("slow", [slice(5, 6), slice(4, 8)], ids=["one node", "the rack"])
def test_nodes_that_are_slow_since_their_rack_came_back_are_accused(tmp_path: Path, slow: slice) -> None:
    found = judged(tmp_path, rebooted(slow))

    assert named(found) == [f"n{node}" for node in range(slow.start, slow.stop)]


def test_a_rack_that_came_back_slow_and_was_repaired_is_accused(tmp_path: Path) -> None:
    rates = healthy(600)
    rates[200:400, 4:8] *= 0.75
    rates[195:200, 4:8], rates[395:400, 4:8] = np.nan, np.nan

    assert named(judged(tmp_path, rates)) == ["n4", "n5", "n6", "n7"]


def updated(step: float, extra: dict[int, float] | None = None, pace: int = 15) -> Rates:
    """A node every so many ticks is silent for three, and has another rate afterwards; some nodes lose more then."""
    rates = healthy(420, seed=2)
    for node in range(12):
        start = 120 + pace * node
        rates[start - 3 : start, node] = np.nan
        rates[start:, node] *= (1 + step) * (extra or {}).get(node, 1.0)
    return rates


@pytest.mark.parametrize(("step", "pace"), [(-0.2, 15), (0.15, 6)])
def test_a_change_that_nodes_make_one_after_another_accuses_nobody(tmp_path: Path, step: float, pace: int) -> None:
    found, table = shown_twice(written(tmp_path, updated(step, pace=pace)))

    by_groups = found["summary"]["cohorts"] > 1  # where nodes follow one another faster than levels are told apart
    assert named(found) == [] and (by_groups or len(named(found, "rollout")) >= 2)
    assert by_groups or "one node after another" in table.stdout


def test_half_of_the_nodes_that_become_slow_one_after_another_and_no_more_are_accused(tmp_path: Path) -> None:
    rates = healthy(330)
    for node in range(6):
        rates[60 + 20 * node :, node] *= 0.8

    assert named(judged(tmp_path, rates)) == [f"n{node}" for node in range(6)]


@pytest.mark.parametrize("how", ["loses far more", "is slow later", "is slow for a time", "loses it all at once"])
def test_a_straggler_beside_a_rolling_update_is_accused(tmp_path: Path, how: str) -> None:
    rates, slow = updated(-0.2), ["n4"]
    if how == "loses far more":
        rates = updated(-0.2, {4: 0.6})
    elif how == "is slow later":
        rates[330:, 4] *= 0.8
    elif how == "is slow for a time":
        rates[90:170, 4] *= 0.8
        rates[177:, 4] /= 0.8
    else:
        rates, slow = healthy(420), ["n1", "n2", "n3", "n4"]
        rates[200:, 1:5] *= 0.8

    assert set(slow) <= set(named(judged(tmp_path, rates)))


@pytest.mark.parametrize(("ticks", "who"), [(2, "pause"), (8, "")])
def test_a_loss_that_ends_by_itself_at_once_is_a_pause(tmp_path: Path, ticks: int, who: str) -> None:
    rates = healthy()
    rates[150 : 150 + ticks, 3] *= 0.3

    assert named(judged(tmp_path, rates), who) == ["n3"]


@pytest.mark.parametrize(("apart", "what"), [(12, ""), (80, "pause")])
def test_a_node_whose_pauses_come_back_is_accused_if_they_cost_much(tmp_path: Path, apart: int, what: str) -> None:
    """n2 stops for two ticks again and again, since the time in which the detector learns what is usual."""
    rates = healthy(240)
    for begin in range(66, 240, apart):
        rates[begin : begin + 2, 2] *= 0.3

    assert named(judged(tmp_path, rates), what) == ["n2"]


def test_a_node_that_pauses_again_is_accused(tmp_path: Path) -> None:
    rates = healthy()
    rates[150:152, 3] *= 0.3
    rates[240:243, 3] *= 0.3

    assert named(judged(tmp_path, rates)) == ["n3"]


@pytest.mark.parametrize("who", ["alone", "as others"])
def test_a_node_whose_short_losses_come_back_more_often_than_those_of_its_peers_is_accused(
    tmp_path: Path, who: str
) -> None:
    """n3 loses half for three ticks, three times far apart, which cost little; its peers do not, or do too."""
    rates = healthy(500)
    for node in (3,) if who == "alone" else range(8):
        for begin in (100, 230, 360):
            rates[begin + 9 * node : begin + 9 * node + 3, node] *= 0.5

    found = judged(tmp_path, rates)

    assert named(found) == (["n3"] if who == "alone" else [])
    assert named(found, "pause") == []


@pytest.mark.parametrize(
    ("what", "who"),
    [("is given more", "other_job"), ("is repaired", ""), ("has a part", "other_job"), ("is full", "")],
)
def test_a_node_with_a_part_of_the_traffic_is_not_slow(tmp_path: Path, what: str, who: str) -> None:
    """n3 does less than its peers from the start. Their load rises and falls."""
    load = 1 + 0.5 * np.sin(np.arange(480) / 40)
    rates = healthy(480) * load[:, None]
    if what == "has a part":
        rates[:, 3] *= 0.1
    elif what == "is full":
        rates[:, 3] *= 0.1 / load
    else:
        rates[:, 3] *= np.repeat(
            [0.25, 0.25, 0.5, 0.75, 0.75, 1] if what == "is given more" else [0.25] * 5 + [1], 80
        )

    assert named(judged(tmp_path, rates), who) == ["n3"]


@pytest.mark.parametrize("level", [1.25, 0.7])
def test_a_node_that_is_slow_since_its_job_began_again_at_another_level_is_no_uneven_one(
    tmp_path: Path, level: float
) -> None:
    rates = healthy()
    rates[150:160] = 0
    rates[160:] *= level
    rates[160:, 3] *= 0.8

    found = judged(tmp_path, rates)

    assert [(one["node"], one["start"]) for one in found["episodes"]] == [("n3", 160 * 30.0)]


@pytest.mark.parametrize(
    "how", ["without a column of jobs", "in one job", "two only", "two as well", "slow afterwards"]
)
def test_nodes_that_stop_together_have_lost_their_job_where_no_column_tells_jobs(tmp_path: Path, how: str) -> None:
    rates, jobs = healthy(), np.zeros((300, 12), np.int64)
    stopped = [2, 5] if how == "two only" else [2, 5, 7, 8]
    rates[150:200, stopped] = 0
    if how == "slow afterwards":
        rates[200:, 5] *= 0.6
    if how == "two as well":
        rates[100:140, [0, 1]] = 0
        stopped = [0, 1, *stopped]

    found = judged(tmp_path, rates, jobs if how == "in one job" else None)

    accused = {"without a column of jobs": [], "two as well": [], "slow afterwards": ["n5"]}.get(
        how, [f"n{node}" for node in stopped]
    )
    assert named(found) == accused
    assert set(named(found) + named(found, "job_end")) == {f"n{node}" for node in stopped}


@pytest.mark.parametrize("how", ["without a column of jobs", "in one job", "a few", "far longer", "slow afterwards"])
def test_nodes_that_stop_one_after_another_wait_for_jobs_where_no_column_tells_jobs(tmp_path: Path, how: str) -> None:
    random, rates = np.random.default_rng(5), healthy(800)
    stopped = [2, 5, 7] if how == "a few" else [0, 1, 2, 4, 5, 7, 8, 10]
    for turn, node in enumerate(stopped):
        start = 60 + 60 * turn
        rates[start : start + int(random.integers(15, 40)), node] = 0
    if how == "far longer":
        rates[600:, 3] = 0
    if how == "slow afterwards":
        rates[560:, 10] *= 0.7

    found = judged(tmp_path, rates, np.zeros((800, 12), np.int64) if how == "in one job" else None)

    accused = {"without a column of jobs": [], "far longer": ["n3"], "slow afterwards": ["n10"]}
    assert named(found) == accused.get(how, sorted(f"n{node}" for node in stopped))


@pytest.mark.parametrize("how", ["jobs of their own", "faults that grow and are repaired", "an update taken back"])
def test_a_loss_as_large_as_gains_of_peers_tells_nothing(tmp_path: Path, how: str) -> None:
    random, rates = np.random.default_rng(6), healthy(600)
    for node in range(4):
        first, second = 120 + 60 * node + random.integers(0, 40, 2).cumsum() * [1, 2]
        up, down = {"jobs of their own": (1.3, 0.8), "an update taken back": (1.15, 1.0)}.get(how, (0.85, 0.6))
        rates[first:second, node] *= up
        rates[second : second + 100, node] *= down
    rates[350:, 9] *= 0.8

    found = judged(tmp_path, rates)

    if how == "jobs of their own":
        assert named(found) == []
        assert {"n0", "n9"} <= set(named(found, "other_job"))
        assert any("add a column 'job_id'" in doubt for doubt in found["summary"]["doubts"])
    else:
        assert "n9" in named(found)
        assert found["summary"]["other_job"] == [] or how == "an update taken back"


def test_jobs_of_single_nodes_are_told_by_gains_in_a_short_history_too(tmp_path: Path) -> None:
    rates = healthy(90)
    for node, start, level in ((0, 40, 1.3), (3, 52, 1.2), (6, 45, 0.8), (9, 60, 0.6)):
        rates[start:, node] *= level
    rates[45:48, 6] = 0

    assert named(judged(tmp_path, rates)) == ["n9"]


def own_levels(ticks: int = 240) -> Rates:
    """Use of twelve chips in percent, each with a job of its own, and with another one at a time of its own."""
    random = np.random.default_rng(8)
    levels = random.uniform(20, 95, (2, 12))
    levels[:, :4] = [[30, 25, 90, 95], [75, 60, 35, 50]]
    rates = levels[0] * np.exp(0.02 * random.normal(size=(ticks, 12)))
    for node in range(8):
        start = 70 + 17 * node
        rates[start:, node] *= levels[1, node] / levels[0, node]
        if node % 2:
            rates[start - 15 : start, node] = 0
    return np.asarray(np.minimum(100, rates))


def test_a_node_that_stops_among_nodes_with_jobs_of_their_own_is_no_exception(tmp_path: Path) -> None:
    rates = own_levels()
    rates[160:, 10] = 0

    found = judged(tmp_path, rates)

    assert named(found) == [] and "n10" in named(found, "other_job")


def test_nodes_that_are_repaired_do_not_excuse_faults_of_others(tmp_path: Path) -> None:
    """Seven of twelve nodes are faulty at times of their own, two of them until they are repaired."""
    rates, faulty = healthy(240), {2: 80, 3: 110, 4: 140, 5: 165, 6: 190}
    rates[:100, 0] *= 0.6
    rates[:150, 1] *= 0.7
    for node, start in faulty.items():
        rates[start:, node] *= 0.0 if node == 5 else 0.65

    assert {f"n{node}" for node in faulty} <= set(named(judged(tmp_path, rates)))


def test_a_history_whose_nodes_are_learnt_for_long_is_judged(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["replay", written(tmp_path, healthy(130, 3)), "--warmup", "200", "--tick", "10"])

    assert done.exit_code == 0, done.output
