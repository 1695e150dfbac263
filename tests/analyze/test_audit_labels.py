"""What the slow ones have in common by columns that say nothing else: a driver, a power feed, a place in the node."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_analyze.audit.chips import Coded
from ingero_analyze.audit.labels import InCommon, Labels, in_common
from ingero_testing.audit_tables import answer, short, written

SLOW = {(node, gpu): 0.12 for node in (3, 7) for gpu in range(8)}


def notes(tmp_path: Path, slow: dict[tuple[int, int], float], column: str, other: str, usual: str) -> list[str]:
    """Notes on a fleet whose slow ones have `other` in a column."""
    lines = [f"node,gpu,run,time_ms,{column}"]
    for node, gpu, number, value in short(slow):
        value_of = other if (int(node[5:]), int(gpu)) in slow else usual.format(node=node, gpu=gpu)
        lines.append(f"{node},{gpu},{number},{value},{value_of}")
    found = answer(written(tmp_path, lines))
    assert len(found["findings"]) == len({node for node, _ in slow})
    return [str(note) for note in found["summary"]["populations"][0]["notes"] if "in common" in note]


def test_nodes_of_one_driver_are_said_to_have_it(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, SLOW, "driver_version", "560.3", "550")

    assert note == "what the named nodes have in common: driver_version 560.3 (2 of 2 of them, 0 of 10 others)"


def test_chips_at_one_place_of_their_nodes_are_said_to_be_there(tmp_path: Path) -> None:
    slow = {(node, 7): 0.15 for node in (1, 4, 6, 10)}
    lines = ["node,gpu,run,time_ms", *(",".join(map(str, row)) for row in short(slow))]
    (population,) = answer(written(tmp_path, lines))["summary"]["populations"]

    assert population["notes"] == ["what the named gpus have in common: GPU 7 (4 of 4 of them, 8 of 92 others)"]


@pytest.mark.parametrize(("other", "usual"), [("A", "A"), ("{node}", "S{node}-{gpu}")])
def test_what_others_have_too_or_nobody_shares_is_not_said(tmp_path: Path, other: str, usual: str) -> None:
    assert notes(tmp_path, {(3, 2): 0.15}, "serial_of_board", other, usual) == []


def said_of_a_level(
    tmp_path: Path, seed: int, slow: npt.NDArray[np.bool_], header: str, place: Callable[[int], str]
) -> list[str]:
    """The notes on three runs in which the `slow` ones lose 10 %; `place`: the cells that tell who one is."""
    random = np.random.default_rng(seed)
    effects = 0.01 * random.normal(size=len(slow)) + 0.1 * slow
    lines = [f"{header},run,time_ms"]
    for number in range(3):
        values = 100 * np.exp(effects + 0.005 * random.normal(size=len(slow)))
        lines += [f"{place(one)},{number},{value:.3f}" for one, value in enumerate(values)]
    (population,) = answer(written(tmp_path, lines))["summary"]["populations"]
    return list(population["notes"])


def test_the_rack_of_nodes_at_a_level_of_their_own_is_said(tmp_path: Path) -> None:
    said = said_of_a_level(tmp_path, 1, np.arange(48) < 16, "node,rack", lambda node: f"n{node},R{node // 16}")

    assert "what those at a level of their own have in common: group R0 (16 of 16 of them, 0 of 32 others)" in said


def test_the_node_of_chips_at_a_level_of_their_own_is_said(tmp_path: Path) -> None:
    said = said_of_a_level(tmp_path, 3, np.arange(32) // 8 == 1, "node,gpu", lambda chip: f"n{chip // 8},{chip % 8}")

    assert "what those at a level of their own have in common: node n1 (8 of 8 of them, 0 of 24 others)" in said


def test_a_value_in_common_has_to_be_more_than_chance() -> None:
    chips = [np.array([chip]) for chip in range(60)]
    width = Coded(np.array([1, 1, 1] + [0] * 57), ["16", "8"])
    board = Coded(np.arange(60), [f"b{chip}" for chip in range(60)])

    found = in_common(chips[:3], chips[3:], {"pcie_width": width, "board": board})

    assert found == [InCommon("pcie_width", "8", 3, 3, 0, 57)]
    assert str(found[0]) == "pcie_width 8 (3 of 3 of them, 0 of 57 others)"
    feed = Coded(np.maximum(np.arange(60) // 3 - 1, 0), [f"P{feed}" for feed in range(20)])
    assert [str(one) for one in in_common(chips[57:], chips[:57], {"pdu": feed})] == [
        "pdu P18 (3 of 3 of them, 0 of 57 others)"
    ]
    assert in_common(chips[:3], chips[3:], {"feed": Coded(np.arange(60) % 2, ["a", "b"])}) == []


def test_columns_of_later_files_and_those_of_too_many_values() -> None:
    labels = Labels()
    labels.use(["driver"])
    labels.add({"driver": "1"})
    labels.use(["driver", "time_of_row"])
    for row in range(1100):
        labels.add({"driver": "2", "time_of_row": str(row)})

    assert list(labels.columns) == ["driver"]
    assert labels.columns["driver"].codes.tolist() == [0] + [1] * 1100
    labels.use(["time_of_row"])
    assert list(labels.columns) == ["driver"]


def test_the_places_that_are_slower_in_all_nodes_are_said(tmp_path: Path) -> None:
    slow = {(node, 0): 0.08 for node in range(12)} | {(4, 0): 0.2, (7, 3): 0.12}
    lines = ["node,gpu,run,time_ms", *(",".join(map(str, row)) for row in short(slow))]
    found = answer(written(tmp_path, lines))
    (note,) = found["summary"]["populations"][0]["notes"]

    assert {one["name"] for one in found["findings"]} == {"node-4/0", "node-7/3"}
    said = "in most nodes some GPUs differ, so each is compared with those of its number: 0 "
    assert re.fullmatch(re.escape(said) + r"\([678]\.\d % slower\)", note)


def test_a_chip_at_a_hot_place_is_not_hot_for_that(tmp_path: Path) -> None:
    lines = ["node,gpu,run,time_ms,gpu_temp_c"]
    for node, gpu, number, value in short({(4, 0): 0.15, (7, 3): 0.15}):
        lines.append(f"{node},{gpu},{number},{value},{72 if gpu == '0' or (node, gpu) == ('node-7', '3') else 58}")
    found = answer(written(tmp_path, lines))["findings"]

    states = {
        one["name"]: (one["evidence"]["temperature"]["state"], one["evidence"]["temperature"]["usual"])
        for one in found
    }
    assert states == {"node-4/0": ("usual", 72), "node-7/3": ("high", 58)}


def test_chips_at_a_level_of_their_own_with_nothing_in_common_are_listed(tmp_path: Path) -> None:
    slow = np.isin(np.arange(80), [3, 8, 14, 21, 25, 34, 36, 43, 50, 59, 61, 68, 75, 78])
    said = said_of_a_level(tmp_path, 3, slow, "node,gpu", lambda chip: f"n{chip // 4},{chip % 4}")

    assert any(
        note.startswith("at a level of their own are: gpu n0/3, gpu n2/0, gpu n3/2, gpu n5/1") for note in said
    )
