"""Accusations that share their cause with others, and those of nodes that are well when the history ends."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ingero_analyze.replay.late_values import LateValues
from ingero_analyze.replay.same_events import excused_before, excused_with_others
from ingero_contract.identifiers import node_key
from ingero_contract.values import VerdictState
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.nodes.verdicts import Axis, Kind, Verdict
from ingero_testing.replays import replayed

Rates = npt.NDArray[np.float64]


def judged(folder: Path, rates: Rates) -> dict[str, Any]:
    """What is found in rows 30 s apart of nodes n0, n1, ..."""
    rows = [f"{30 * tick},n{node},{rates[tick, node]:.2f}" for tick, node in np.ndindex(rates.shape)]
    (folder / "history.csv").write_text("\n".join(["time,node,rate", *rows]))
    return replayed(str(folder / "history.csv"))


def named(found: dict[str, Any], what: str = "") -> set[str]:
    return {one["node"] for one in (found["summary"][what] if what else found["episodes"])}


def stopping(start: int, nodes: range, ticks: int) -> Rates:
    """18 nodes, of which some do nothing for 20 ticks."""
    rates = np.asarray(100 * np.exp(0.015 * np.random.default_rng(1).normal(size=(ticks, 18))))
    rates[start : start + 20, nodes] = 0
    return rates


def stop(node: str, since: float, kept: float, expected: float = 100.0, ended: bool = False) -> Episode:
    """A node that did nothing from then on, and has done a share of its usual work after that."""
    first = Verdict(
        cluster="", node=node, state=VerdictState.STRAGGLER, kind=Kind.STOPPED, axis=Axis.OWN, since=since,
        detected=since + 60, recovered=None, severity=1.0, value=0.0, expected=expected, residual=-4.0, scale=0.02,
        evidence=9.0, level=5.0, cohort="", cohort_size=30, merged=False, time=since + 60, digest="",
    )  # fmt: skip
    last = replace(first, value=kept * expected, residual=math.log(kept), severity=1 - kept)
    return Episode(first, replace(last, recovered=since + 600) if ended else last, ended)


def slow(node: str, since: float, kept: float) -> Episode:
    """A node that does a share of its usual work from then on."""
    one = stop(node, since, kept)
    return replace(one, first=replace(one.last, kind=Kind.SLOW))


def excused(
    accused: list[Episode], others: dict[str, list[Episode]], several_jobs: bool = False, hosts: tuple[str, ...] = ()
) -> dict[str, str]:
    """The reasons by node; those of `hosts` are GPUs of one host."""
    host_of = {node_key("", node): node_key("", "host") for node in hosts}
    found = excused_with_others(accused, others, host_of, 9000.0, 30.0, "job_end", several_jobs=several_jobs)
    return {node[1]: reason for (node, _), reason in found.items()}


TWO = [stop("x1", 6000, 0.6), stop("x2", 6030, 0.58)]
JOBS = [stop(f"{since}-{node}", since, 0.8) for since in (3000, 4500) for node in range(3)]


def test_a_node_that_lost_what_most_of_its_event_did_has_their_excuse() -> None:
    mates = [slow("a", 3000, 0.7), slow("b", 3030, 0.72)]

    assert excused([slow("c", 3000, 0.71)], {"together": mates}) == {"c": "together"}
    assert excused([slow("c", 3000, 0.4)], {"together": mates}) == {}
    assert excused([slow("c", 3200, 0.71)], {"together": mates}) == {}
    assert excused([slow("c", 3000, 0.71)], {"together": mates[:1]}) == {}
    assert excused([slow("c", 3000, 0.71), slow("d", 3000, 0.71)], {"together": mates}) == {}
    assert excused([slow("c", 3000, 0.71)], {"together": mates}, hosts=("a", "b")) == {}


def test_stops_that_are_seen_together_are_one_event_where_one_seems_to_have_begun_earlier() -> None:
    mates = [stop("a", 3000, 0.7), stop("b", 3030, 0.7)]
    early = stop("c", 3000, 0.7)
    early = replace(early, first=replace(early.first, since=2880))

    assert excused([early], {"other_job": mates}) == {"c": "other_job"}


def test_nodes_that_stop_together_where_jobs_end_have_another_job() -> None:
    assert excused(TWO, {"other_job": JOBS}) == {"x1": "job_end", "x2": "job_end"}
    assert excused(TWO, {"other_job": JOBS[:3]}) == {}
    assert excused(TWO[:1], {"other_job": JOBS}) == {}
    assert excused([TWO[0], stop("x2", 6000, 0.9)], {"other_job": JOBS}) == {}
    assert excused([slow("x1", 6000, 0.6), slow("x2", 6000, 0.6)], {"other_job": JOBS}) == {}
    assert excused(TWO, {"other_job": JOBS}, hosts=("x1", "x2")) == {}


def test_nodes_that_stop_together_beside_groups_of_jobs_have_another_job() -> None:
    three = [*TWO, stop("x3", 6000, 0.6)]

    assert excused(three, {}, several_jobs=True) == {"x1": "job_end", "x2": "job_end", "x3": "job_end"}
    assert excused(TWO, {}, several_jobs=True) == {}
    assert excused(three, {}) == {}


def test_what_jobs_excused_before_groups_were_told_stays_excused() -> None:
    before = {"other_job": [stop("a", 3000, 0.7), stop("b", 3030, 0.7), stop("c", 4500, 0.7)]}

    def excuse(episode: Episode) -> dict[str, str]:
        found = excused_before([episode], before, {}, 9000.0, 30.0)
        return {node[1]: reason for (node, _), reason in found.items()}

    assert excuse(slow("a", 3000, 0.7)) == excuse(slow("a", 3200, 0.72)) == {"a": "other_job"}
    assert excuse(slow("a", 2900, 0.7)) == {}
    assert excuse(slow("a", 3000, 0.4)) == {}
    assert excuse(slow("c", 4500, 0.7)) == {}
    assert excuse(slow("d", 3000, 0.7)) == {}


@pytest.mark.parametrize(("rate", "other"), [(80.0, True), (82.0, True), (60.0, False), (100.0, False)])
def test_a_node_that_does_what_nodes_of_another_group_do_may_be_one_of_these(rate: float, other: bool) -> None:
    """n0 is of the group of n1 and n2, at 100; n3, n4 and n5 are of another one, at 80."""
    rates = LateValues(30.0)
    names = [node_key("", f"n{node}") for node in range(6)]
    for tick in range(200):
        value = np.array([rate if tick < 100 else 100.0, 100.0, 100.0, 80.0, 80.0, 80.0])
        cohort, state = np.array([0, 0, 0, 1, 1, 1]), np.full(6, ACTIVE, np.uint8)
        rates.note(30.0 * tick, Observation(names, cohort, [], value, state))

    accused = slow("n0", 0, 0.8)
    accused = replace(accused, first=replace(accused.first, detected=600.0))
    assert rates.like_another_cohort(accused) is other


def test_nodes_that_work_again_when_the_history_ends_have_lost_their_job(tmp_path: Path) -> None:
    found = judged(tmp_path, stopping(200, range(4), 226))

    assert (named(found), named(found, "job_end")) == (set(), {"n0", "n1", "n2", "n3"})


def test_a_loss_that_had_ended_when_the_history_ends_is_compared_like_one_that_was_cleared(tmp_path: Path) -> None:
    """Rates that wander below a ceiling; n8 is well again for a few ticks."""
    wander, change = np.zeros((132, 12)), np.random.default_rng(11).normal(0, 0.013, (300, 12))
    for tick in range(1, 132):
        wander[tick] = 0.9 * wander[tick - 1] + change[tick]
    rates = np.minimum(100.0, np.round(96 * np.exp(wander + 0.1 * np.sin(np.arange(132) / 40)[:, None])))

    found = judged(tmp_path, rates)

    assert (named(found), named(found, "shared")) == (set(), {"n8"})
