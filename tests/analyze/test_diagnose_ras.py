"""`diagnose --ras`: hangs from statuses of NCCL's RAS client."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main
from ingero_testing.ras_service import communicator, gone, rank, status, world


def ask(folder: Path, *statuses: str) -> dict[str, Any]:
    arguments = []
    for place, content in enumerate(statuses):
        file = folder / f"{place}.json"
        file.write_text(content)
        arguments += ["--ras", str(file)]
    done = CliRunner().invoke(main, ["diagnose", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def frozen(folder: Path, *comms: Any) -> dict[str, Any]:
    return ask(folder, status(*comms), status(*comms, second=40))


def test_the_rank_behind_is_named_when_nothing_moves(tmp_path: Path) -> None:
    answer = frozen(tmp_path, world([9, 9, 7, 9]))
    assert (answer["kind"], answer["ranks"]) == ("hang", [2])
    assert answer["evidence"]["nodes"] == {"2": "10.0.0.2"}
    front = answer["evidence"]["collectives"][0]
    assert (front["op"], front["missing"], front["entered_count"]) == ("AllReduce", [2], 3)
    assert answer["claims"]["ras"]["cannot"] and answer["problems"]["count"] == 0


def test_one_status_lists_the_rank_and_names_nobody(tmp_path: Path) -> None:
    answer = ask(tmp_path, status(world([9, 9, 8, 9])))
    assert (answer["kind"], answer["ranks"], answer["evidence"]["possible"]) == ("unknown", [], [2])
    assert "another status" in answer["evidence"]["reason"]


def test_statuses_too_close_together_name_nobody(tmp_path: Path) -> None:
    comm = world([9, 8])
    assert ask(tmp_path, status(comm), status(comm, second=10))["kind"] == "unknown"


def test_a_job_that_moves_does_not_hang(tmp_path: Path) -> None:
    answer = ask(tmp_path, status(world([9, 8]), second=40), status(world([8, 8])))
    assert (answer["kind"], answer["ranks"], answer["evidence"]["possible"]) == ("none", [], [])


def test_a_rank_behind_that_waits_elsewhere_is_a_victim(tmp_path: Path) -> None:
    pair = communicator("0xb", [rank(0, 2, 5), rank(1, 3, 4)])
    answer = frozen(tmp_path, world([9, 9, 8, 8]), pair)
    assert (answer["kind"], answer["ranks"]) == ("hang", [3])


def test_ranks_that_wait_for_each_other_are_possible_only(tmp_path: Path) -> None:
    first = communicator("0xa", [rank(0, 0, 5), rank(1, 1, 4)])
    second = communicator("0xb", [rank(0, 0, 4), rank(1, 1, 5)])
    answer = frozen(tmp_path, first, second)
    assert (answer["kind"], answer["evidence"]["possible"]) == ("unknown", [0, 1])


@pytest.mark.parametrize(("dead", "kind", "named"), [(True, "no_dump", [2]), (False, "unknown", [])])
def test_a_process_that_does_not_answer(tmp_path: Path, dead: bool, kind: str, named: list[int]) -> None:
    comm = communicator("0xa", [rank(0, 0, 9), rank(1, 1, 8)], [gone(2, 2, dead=dead)])
    answer = frozen(tmp_path, comm)
    assert (answer["kind"], answer["ranks"]) == (kind, named)
    assert set(answer["evidence"]["possible"]) >= ({1} if dead else {1, 2})


def test_different_collectives_and_unlisted_ranks_name_nobody(tmp_path: Path) -> None:
    mixed = communicator("0xa", [rank(0, 0, 9), rank(1, 1, 8, Reduce=1)])
    unlisted = world([9, 8]) | {"size": 3}
    for comm in (mixed, unlisted):
        answer = frozen(tmp_path, comm)
        assert (answer["kind"], answer["ranks"]) == ("unknown", [])


def test_sends_and_communicators_being_finalised_are_not_compared(tmp_path: Path) -> None:
    sends = communicator("0xa", [rank(0, 0, 9, Send=4), rank(1, 1, 9, Recv=3)])
    ending = communicator("0xb", [rank(0, 0, 9), rank(1, 1, 8)])
    ending["ranks"][0]["status"]["finalize_called"] = True
    assert frozen(tmp_path, sends, ending)["kind"] == "none"


def test_the_comma_that_one_version_leaves_out_is_put_back(tmp_path: Path) -> None:
    comm = communicator("0xa", [rank(0, 0, 9)], [gone(1, 1, dead=True)])
    broken = status(comm).replace('"nvml_dev": 0,\n', '"nvml_dev": 0\n')
    assert ask(tmp_path, broken)["ranks"] == [1]


def test_ranks_without_a_common_communicator_are_named_by_process(tmp_path: Path) -> None:
    pairs = [communicator(name, [rank(0, at, 9), rank(1, at + 1, 8)]) for name, at in (("0xa", 0), ("0xb", 2))]
    assert frozen(tmp_path, *pairs)["ranks"] == ["10.0.0.1:101:0", "10.0.0.3:103:0"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"ranks": 3}, "communicators[1]: ranks: a list"),
        ({"size": "many"}, "communicators[1]: hash and size"),
        ({"ranks": [{"rank": 0}]}, "communicators[1]: ranks[0]: an object"),
        ({"ranks": [rank(0, 0, -4)]}, "communicators[1]: ranks[0]: collective_counts"),
        ({"ranks": [rank(7, 0, 4)]}, "communicators[1]: ranks[0]: rank, pid"),
        ({"ranks": [rank(0, 0, 4), rank(0, 1, 4)]}, "communicators[1]: ranks[1]: rank 0 is listed twice"),
    ],
)
def test_a_bad_part_is_named_with_its_place_and_nobody_is_accused(
    tmp_path: Path, change: dict[str, Any], place: str
) -> None:
    answer = frozen(tmp_path, world([9, 8]), communicator("0xb", [rank(0, 0, 1), rank(1, 1, 1)]) | change)
    assert place in answer["problems"]["first"][0]
    assert (answer["kind"], answer["ranks"], answer["evidence"]["possible"]) == ("unknown", [], [1])


@pytest.mark.parametrize("content", ["", "[]", "NCCL version 2.28", '{"communicators": [], "timestamp": "x"}'])
def test_a_file_that_is_no_status_ends_with_two(tmp_path: Path, content: str) -> None:
    file = tmp_path / "status.json"
    file.write_text(content)
    done = CliRunner().invoke(main, ["diagnose", "--ras", str(file)])
    assert done.exit_code == 2 and str(file) in done.stderr


def test_the_text_of_ncclras_is_told_how_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "status.txt"
    file.write_text("NCCL version 2.28.7\n\nCommunicators: 2, all in good order\n")
    done = CliRunner().invoke(main, ["diagnose", "--ras", str(file)])
    assert done.exit_code == 2 and f"{file}: not JSON: what `ncclras -f json` prints is read" in done.stderr


def test_the_table_has_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    file.write_text(status(communicator("0xa", [rank(0, 0, 9)], [gone(1, 1, dead=True)])))
    done = CliRunner().invoke(main, ["diagnose", "--ras", str(file), "--table"])
    assert "the process of rank 1 is dead" in done.stdout
