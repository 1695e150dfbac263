"""Flight Recorder dumps: who is missing from which collective."""

import itertools
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ingero_analyze.diagnose.flight_recorder_dumps import dump_of, read_dumps
from ingero_analyze.diagnose.hang_reasons import Why
from ingero_analyze.diagnose.hangs import HangKind, find_hang
from ingero_analyze.diagnose.sources import OperationRows, Problems, SourceError
from ingero_contract.identifiers import Rank
from ingero_fleet.cli import main
from ingero_testing.hang_jobs import dumps_of, hang_jobs, outcome, running_job

WORLD = 4


def entry(seq: int, *, group: str = "0", op: str = "all_reduce", ended: bool = True, **more: Any) -> dict[str, Any]:
    """One entry as PyTorch writes it."""
    return {
        "record_id": seq, "pg_id": 0 if group == "0" else int(group), "op_id": seq, "is_p2p": False,
        "process_group": (group, "default_pg" if group == "0" else "undefined"), "collective_seq_id": seq,
        "p2p_seq_id": 0, "profiling_name": f"nccl:{op}", "time_created_ns": 1_700_000_000_000_000_000 + seq * 10**7,
        "input_sizes": [[1000]], "input_dtypes": ["Float"], "output_sizes": [[1000]], "output_dtypes": ["Float"],
        "state": "completed" if ended else "started", "retired": ended, "timeout_ms": 600_000,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "frames": [],
    } | more  # fmt: skip


def dump(entries: list[dict[str, Any]], groups: dict[str, list[int]] | None = None, **more: Any) -> dict[str, Any]:
    groups = groups or {"0": list(range(WORLD))}
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "", "ranks": json.dumps(ranks)} for name, ranks in groups.items()},
        "pg_status": {},
        "entries": entries,
    } | more


def hang_of(*parts: tuple[int, Any]) -> Any:
    return find_hang(
        [dump_of(value, Rank(rank), f"rank{rank}", Problems(), OperationRows()) for rank, value in parts]
    )


def test_the_rank_that_did_not_come_is_named() -> None:
    ended = [entry(1), entry(2)]
    hang = hang_of(*((rank, dump(ended if rank == 2 else [*ended, entry(3, ended=False)])) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks) == ("hang", (2,))
    front = hang.fronts[0]
    assert (front.seq, front.ops, front.entered, front.missing) == (3, ("all_reduce",), (0, 1, 3), (2,))


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0]])
def test_entries_count_in_the_order_of_their_numbers(order: list[int]) -> None:
    entries = [entry(1), entry(2), entry(3, ended=False)]
    lists = [[entry(1), entry(2)] if rank == 2 else [entries[place] for place in order] for rank in range(WORLD)]
    hang = hang_of(*((rank, dump(own)) for rank, own in enumerate(lists)))

    assert (hang.kind, hang.ranks) == ("hang", (2,))
    assert not dump_of(
        dump([entry(1, record_id=1), entry(0, record_id=0)]), Rank(0), "", Problems(), OperationRows()
    ).full


def at(seconds: float, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries, called so much later."""
    return [{**one, "time_created_ns": one["time_created_ns"] + int(seconds * 1e9)} for one in entries]


COMBINED: dict[str, Callable[[dict[int, Any]], bytes]] = {
    "by rank": lambda dumps: json.dumps(dumps).encode(),
    "by name": lambda dumps: json.dumps({"dumps": {f"rank_{rank}": value for rank, value in dumps.items()}}).encode(),
    "a list": lambda dumps: json.dumps(
        {"ranks": [{**value, "rank": rank} for rank, value in dumps.items()]}
    ).encode(),
    "lines": lambda dumps: "\n".join(map(json.dumps, dumps.values())).encode(),
    "a pickle": pickle.dumps,
}


@pytest.mark.parametrize("combined", COMBINED.values(), ids=COMBINED)
def test_one_file_may_hold_the_dumps_of_all_ranks(
    tmp_path: Path, combined: Callable[[dict[int, Any]], bytes]
) -> None:
    waiting = dump(collectives(6, pending=1))
    (tmp_path / "all.json").write_bytes(combined({0: waiting, 1: dump(collectives(5)), 2: waiting}))

    done = CliRunner().invoke(main, ["diagnose", "--json", "--hung", "--flight-recorder", str(tmp_path)])
    found = json.loads(done.stdout)

    assert (found["kind"], found["ranks"], found["evidence"]["dumps"]) == ("hang", [1], 3)


def report(seq: int, group: str, expected: str, *fields: str) -> str:
    """A block of what fr_trace prints."""
    lines = ["internal record id: 4", f"group info: {group}", "collective: nccl:all_reduce", *fields,
             "input sizes: [[3, 4]]", f"expected ranks: {expected}", "collective state: scheduled"]  # fmt: skip
    begin = "Not all ranks joining collective, sequence number: {}" if "missing" in fields[0] else (
        "Collective sequence number: {} has errors"
    )  # fmt: skip
    return "\n".join([begin.format(seq), *lines, "collective stack trace:", " main at /train.py:5", ""])


MISSING = report(7, "0:default_pg", "{0, 1, 2, 3}", "missing ranks: {1, 2}")
WAITS_TOO = report(3, "1:tp", "{1, 2}", "missing ranks: {2}")
SIZE = (
    "Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[3, 4]]' does not match found input sizes: '[[5]]'"
)
KIND = "Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce' does not match found collective "
REPORTS = {
    "whoever waits elsewhere is a victim": (MISSING + WAITS_TOO, "hang", [2]),
    "of an older analyzer": ("Not all ranks joining collective 5 at entry 4\n"
                             + report(5, "0:default_pg", "2", "missing ranks: {1}").partition("\n")[2], "hang", [1]),
    "another size": (
        report(5, "0:default_pg", "{0, 1, 2}", f"error messages: Culprit rank 2; {SIZE}"), "mismatch", [2],
    ),
    "another collective": (
        report(5, "0:default_pg", "{0, 1, 2}", f"error messages: Culprit rank 1; {KIND}type: 'broadcast'"),
        "mismatch", [1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "ranks"), REPORTS.values(), ids=REPORTS)
def test_what_the_analyzer_of_dumps_prints_is_read(tmp_path: Path, text: str, kind: str, ranks: list[int]) -> None:
    (tmp_path / "fr_trace.txt").write_text(f"loaded 4 files in 0.1s\n{text}")

    done = CliRunner().invoke(main, ["diagnose", "--json", str(tmp_path / "fr_trace.txt")])
    found = json.loads(done.stdout)

    assert (found["kind"], found["ranks"]) == (kind, ranks)


def test_a_dump_of_an_earlier_run_is_left_out_and_said(tmp_path: Path) -> None:
    """Rank 1 let others wait in a run an hour before; now rank 3 does, and 1 has not dumped again."""
    last = at(3600, [entry(1), entry(2)])
    waiting = [*last, *at(3600, [entry(3, ended=False)])]
    for rank, entries in enumerate([waiting, [entry(1)], waiting, last]):
        (tmp_path / f"rank_{rank}").write_text(json.dumps(dump(entries)))

    done = CliRunner().invoke(main, ["diagnose", "--json", "--flight-recorder", str(tmp_path)])
    found = json.loads(done.stdout)

    assert (found["kind"], found["ranks"], list(found["evidence"]["possible"])) == ("hang", [3], ["1"])
    assert found["evidence"]["why"]["3"].startswith("its host calls nothing more")
    assert "earlier run" in found["evidence"]["possible"]["1"]
    assert found["evidence"]["earlier_run"] == {"1": "2023-11-14T22:13:20.010Z"}
    assert "the dump of rank 1 is of an earlier run" in done.stderr


def test_nobody_is_certain_where_most_dumps_are_not_of_the_last_run() -> None:
    ended, later = [entry(1)], at(3600, [entry(1), entry(2, ended=False)])
    hang = hang_of(*((rank, dump(later if rank < 2 else ended)) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.possible, set(hang.earlier)) == ("unknown", (), (0, 1, 2, 3), {2, 3})
    assert "several runs" in hang.reason


@pytest.mark.parametrize("shared", [{}, {"0xab": {}}], ids=["clocks of all hosts", "one host's clock"])
def test_clocks_that_are_off_make_no_earlier_run(shared: dict[str, Any]) -> None:
    """All hosts differ by hours, or one does and its communicator is that of the others."""
    shift = [5e4, -2e4, 0, 9e4] if not shared else [0, 0, 0, -3600.0]
    ended = [entry(1), entry(2)]
    hang = hang_of(*(
        (rank, dump(at(shift[rank], ended if rank == 3 else [*ended, entry(3, ended=False)]), nccl_comm_state=shared))
        for rank in range(WORLD)
    ))  # fmt: skip

    assert (hang.kind, hang.ranks, hang.earlier) == ("hang", (3,), {})


def test_a_rank_that_is_missing_because_it_waits_elsewhere_is_a_victim() -> None:
    """Rank 1 waits for 0 in their own group, and so does not come to the collective of 1 and 3."""
    groups = {"1": [0, 1], "2": [1, 3]}
    hang = hang_of(
        (0, dump([entry(1, group="1")], groups)),
        (1, dump([entry(2, group="1", ended=False), entry(1, group="2")], groups)),
        (3, dump([entry(2, group="2", ended=False)], groups)),
    )

    assert (hang.kind, hang.ranks) == ("hang", (0,))


def test_the_analyzers_list_of_calls_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    call = "all_reduce(input_sizes=[[16]], state=scheduled)"
    (tmp_path / "calls.txt").write_text(f"Rank 0  Rank 1\n-------  -------\n{call}  {call}\n{call}\n")

    done = CliRunner().invoke(main, ["diagnose", "--json", str(tmp_path / "calls.txt")])

    assert done.exit_code == 2
    assert "give the dumps that it was made from, or what fr_trace prints without -j" in done.stderr


def test_ranks_that_wait_for_each_other_are_reported_and_none_is_named() -> None:
    groups = {"1": [0, 1], "2": [0, 1]}
    hang = hang_of(
        (0, dump([entry(2, group="1", ended=False), entry(1, group="2")], groups)),
        (1, dump([entry(1, group="1"), entry(2, group="2", ended=False)], groups)),
    )

    assert (hang.kind, hang.ranks) == ("order", ())


@pytest.mark.parametrize("early", [0, 3])
def test_a_rank_that_leaves_its_loop_early_is_named_against_all_others_that_wait_for_it(early: int) -> None:
    """It waits for all others in the whole job's group; they wait for it where weights are gathered."""
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    gather = [entry(1, group="1", op="_all_gather_base")]
    waits = entry(2, group="1", op="_all_gather_base", ended=False)
    hang = hang_of(
        *(
            (rank, dump([*gather, entry(1), entry(2, ended=False) if rank == early else waits], groups))
            for rank in range(WORLD)
        )
    )

    assert (hang.kind, hang.ranks, hang.possible, hang.cycle) == ("order", (early,), (), ())
    assert "alone" in hang.why[Rank(early)]


def test_a_rank_that_alone_calls_two_collectives_in_another_order_than_before_is_named() -> None:
    """Ranks 0 to 3 call group 1 and then group 2; in the second round rank 2 calls them the other way round."""
    groups = {"1": [0, 1, 2, 3], "2": [0, 1, 2, 3, 4]}
    first, second = [entry(1, group="1"), entry(1, group="2")], entry(2, group="2", ended=False)
    own = {rank: [*first, entry(2, group="1", ended=False)] for rank in range(4)}
    own |= {2: [*first, second], 4: [entry(1, group="2"), second]}
    hang = hang_of(*((rank, dump(entries, groups)) for rank, entries in own.items()))
    anew = hang_of(*((rank, dump(entries[-1:], groups)) for rank, entries in own.items()))

    assert (hang.kind, hang.ranks, hang.possible, hang.cycle) == ("order", (2,), (), ())
    assert "another order" in hang.why[Rank(2)]
    assert (anew.kind, anew.ranks) == ("order", ()), "nothing says in which order they called them before"


def test_one_rank_that_calls_more_than_all_others_that_wait_for_nothing_is_most_likely() -> None:
    """Either it has a batch more than the others, or all their hosts stopped after the same call."""
    ended = [entry(1), entry(2)]
    others = [(rank, dump(ended)) for rank in range(1, WORLD)]
    hang = hang_of((0, dump([*ended, entry(3, ended=False)])), *others)
    apart = hang_of(
        (0, dump([*ended, entry(3, ended=False)])), *others[:2], (3, dump([entry(1), entry(2, op="barrier")]))
    )

    assert (hang.kind, hang.ranks, hang.possible, hang.likely) == ("unknown", (), (0, 1, 2, 3), (0,))
    assert (apart.kind, apart.ranks) == ("hang", (1, 2, 3))


def test_a_dump_that_is_lost_makes_nobody_certain_who_waits_for_nothing() -> None:
    ended = [entry(1), entry(2)]

    hang = hang_of((0, dump([*ended, entry(3, ended=False)])), *((rank, dump(ended)) for rank in (1, 2)))

    assert (hang.kind, hang.ranks, hang.possible, hang.likely) == ("unknown", (), (0, 1, 2, 3), (0,))
    assert hang.why[Rank(3)] == Why.NO_DUMP


def test_dumps_of_the_first_version_are_a_list_of_entries(tmp_path: Path) -> None:
    """As PyTorch 2.2 writes them: no groups, no numbers of entries, times in microseconds. Folders tell the rank."""

    def first(seq: int, state: str) -> dict[str, Any]:
        return {
            "pg_id": 0, "seq_id": seq, "profiling_name": "nccl:all_reduce", "state": state, "frames": [],
            "input_sizes": [[1000]], "output_sizes": [[1000]], "time_created_us": 1_700_000_000_000_000,
        }  # fmt: skip

    for rank in range(WORLD):
        entries = [first(1, "completed"), *([first(2, "scheduled")] if rank != 2 else [])]
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "dump.pkl").write_bytes(pickle.dumps(entries, 2))

    found, _, _ = ask(str(tmp_path))

    assert (found["kind"], found["ranks"]) == ("hang", [2])


def of_first_version(rank: int, pairs: int, data: int, total: int, waits: str) -> tuple[int, list[dict[str, Any]]]:
    """A dump of PyTorch 2.2 with ended calls in a pair of ranks, among others and of all, and a last one.

    Groups have the numbers in which the rank made them, so those of ranks that share none may have one number.
    """
    calls = [(1, pairs), (2, data), (0, total)]
    last = {"pair": (1, pairs + 1), "data": (2, data + 1), "all": (0, total + 1)}
    entries = [(number, seq, "completed") for number, count in calls for seq in range(1, count + 1)]
    entries += [(*last[waits], "scheduled")] if waits else []
    return rank, [
        {
            "pg_id": number, "seq_id": seq, "profiling_name": "nccl:all_reduce", "state": state, "frames": [],
            "input_sizes": [[1000]], "output_sizes": [[1000]], "time_created_us": 1_700_000_000_000_000 + place,
        }
        for place, (number, seq, state) in enumerate(entries)
    ]  # fmt: skip


def test_without_groups_the_rank_that_waits_for_nothing_is_named() -> None:
    hang = hang_of(
        of_first_version(0, 2, 2, 1, "all"), of_first_version(1, 2, 1, 1, "data"),
        of_first_version(2, 1, 1, 1, "pair"), of_first_version(3, 1, 1, 1, ""),
    )  # fmt: skip

    assert (hang.kind, hang.ranks, hang.possible) == ("hang", (3,), ())


def test_without_groups_nobody_is_named_by_numbers_that_may_be_of_several_groups() -> None:
    """The last rank is gone without a dump, and nothing tells that there was one: its partner seems to be behind."""
    parts = [of_first_version(rank, 5, 3, 2, "all" if rank < 4 else "data") for rank in range(6)]
    hang = hang_of(*parts, of_first_version(6, 3, 2, 1, "pair"))

    assert (hang.kind, hang.ranks) == ("unknown", ())
    assert "do not say which ranks form a group" in hang.reason


def test_without_groups_the_only_rank_without_a_dump_is_named_where_all_others_wait() -> None:
    hang = hang_of(
        of_first_version(0, 2, 2, 1, "all"),
        of_first_version(1, 2, 1, 1, "data"),
        of_first_version(3, 1, 1, 1, "pair"),
    )

    assert (hang.kind, hang.ranks) == ("no_dump", (2,))


@pytest.mark.parametrize("timed", [True, False])
def test_durations_show_that_a_kernel_without_start_has_not_begun(timed: bool) -> None:
    """As dumps of PyTorch 2.3 show it, which have no times at which starts were found."""
    ended = entry(1, duration_ms=1.5) if timed else entry(1)
    states = ["scheduled" if rank == 2 or not timed else "started" for rank in range(WORLD)]

    hang = hang_of(*((rank, dump([ended, entry(2, ended=False, state=state)])) for rank, state in enumerate(states)))

    assert (hang.kind, hang.ranks) == (("hang", (2,)) if timed else ("stuck", ()))


def after_rounds(rank: int, rounds: list[int], last: list[str]) -> tuple[int, Any]:
    """A rank that in each round meets its partner so often, and then all ranks; the last call has not ended."""
    pair = str(1 + rank // 2)
    called = [group for times in rounds for group in (*[pair] * times, "0")] + last
    entries = [
        entry(called[: place + 1].count(group), group=group, ended=place + 1 < len(called), record_id=place)
        for place, group in enumerate(called)
    ]
    return rank, dump(entries, {"0": [0, 1, 2, 3], pair: [rank // 2 * 2, rank // 2 * 2 + 1]})


@pytest.mark.parametrize(
    ("rounds", "own", "partners", "named"),
    [
        pytest.param([2, 2, 2], ["1", "0"], ["1", "1"], (1,), id="left out"),
        pytest.param([2, 2, 2], ["1", "1", "1"], ["1", "1", "0"], (1,), id="called again"),
        pytest.param([2, 2], ["1", "0"], ["1", "1"], (), id="too few rounds before"),
        pytest.param([2, 2, 3], ["1", "0"], ["1", "1"], (), id="rounds that differ"),
    ],
)
def test_of_ranks_that_wait_for_each_other_the_one_whose_round_is_unlike_those_before_is_named(
    rounds: list[int], own: list[str], partners: list[str], named: tuple[int, ...]
) -> None:
    others = [after_rounds(rank, rounds, [*["2"] * rounds[-1], "0"]) for rank in (2, 3)]
    hang = hang_of(after_rounds(0, rounds, partners), after_rounds(1, rounds, own), *others)

    assert (hang.kind, hang.ranks, hang.possible) == ("order", named, () if named else (0, 1))
    assert not named or "each round before" in hang.why[Rank(1)]


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    """Rank 3 lets 2 wait in their group 1; ranks 0 and 1 have another group 1."""
    both = [entry(1, group="1"), entry(2, group="1", ended=False)]
    hang = hang_of(
        *((rank, dump([entry(1, group="1"), entry(2, group="1")], {"1": [0, 1]})) for rank in (0, 1)),
        (2, dump(both, {"1": [2, 3]})),
        (3, dump(both[:1], {"1": [2, 3]})),
    )

    assert (hang.kind, hang.ranks, hang.possible) == ("hang", (3,), ())
    assert [front.group for front in hang.fronts] == ["1 (2 to 3)"]


def test_dumps_of_jobs_of_different_sizes_are_not_judged_together() -> None:
    small, large = {"0": [0, 1]}, {"0": [0, 1, 2, 3]}
    ended, waits = [entry(1)], [entry(1), entry(2, ended=False)]
    hang = hang_of((0, dump(ended, small)), (1, dump(ended, small)), (2, dump(waits, large)), (3, dump(waits, large)))

    assert (hang.kind, hang.ranks) == ("unknown", ())
    assert hang.reason == "these are dumps of jobs of 2 and 4 ranks; judge the dumps of each job by themselves"


@pytest.mark.parametrize(("what", "words"), [("input_sizes", "another size"), ("input_dtypes", "another type")])
def test_a_mismatch_says_what_differs_and_which_line_called_it(tmp_path: Path, what: str, words: str) -> None:
    def frames(line: int) -> dict[str, Any]:
        inside = {"filename": "/lib/torch/distributed/distributed_c10d.py", "line": 9, "name": "all_reduce"}
        return {"frames": [inside, {"filename": "/app/train.py", "line": line, "name": "step"}]}

    for rank in range(WORLD):
        other: dict[str, Any] = {what: [[7, 2]] if what == "input_sizes" else ["BFloat16"]} if rank == 3 else {}
        own = [entry(1), entry(2, ended=False, **frames(40 + (rank == 3)), **other)]
        (tmp_path / f"rank_{rank}").write_text(json.dumps(dump(own)))

    found = json.loads(CliRunner().invoke(main, ["diagnose", "--json", "--flight-recorder", str(tmp_path)]).stdout)
    front = found["evidence"]["collectives"][0]

    assert (found["kind"], found["ranks"], front["op"]) == ("mismatch", [3], f"all_reduce/all_reduce of {words}")
    assert [(call["ranks"], call["place"]) for call in front["calls"]] == [
        ([0, 1, 2], "/app/train.py:40 in step"), ([3], "/app/train.py:41 in step")
    ]  # fmt: skip
    assert {(call["elements"], call["types"]) for call in front["calls"]} == {
        ("[1000]", "Float"), ("[14]", "Float") if what == "input_sizes" else ("[1000]", "BFloat16")
    }  # fmt: skip


def test_the_last_call_of_a_rank_that_did_not_come_is_shown_with_its_line(tmp_path: Path) -> None:
    at: dict[str, Any] = {"frames": [{"filename": "/app/train.py", "line": 12, "name": "step"}]}
    for rank in range(WORLD):
        (tmp_path / f"rank_{rank}").write_text(
            json.dumps(dump([entry(1, **at)] if rank == 2 else [entry(1, **at), entry(2, ended=False)]))
        )

    found = json.loads(CliRunner().invoke(main, ["diagnose", "--json", "--flight-recorder", str(tmp_path)]).stdout)

    assert found["ranks"] == [2]
    assert found["evidence"]["last_calls"]["2"]["place"] == "/app/train.py:12 in step"


def test_one_of_two_halves_or_one_of_two_ranks_that_disagree_is_not_named() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    halves = hang_of(*((rank, dump([entry(1, ended=False, group=str(rank // 2))], groups)) for rank in range(WORLD)))
    # Ranks 2 and 3 only wait for 1, which may have left out what 0 waits for.
    groups = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [1, 2, 3]}
    pair = hang_of(
        (0, dump([entry(1, group="1", ended=False)], groups)),
        (1, dump([entry(1, ended=False)], groups)),
        (2, dump([entry(1, group="2", ended=False)], groups)),
        (3, dump([entry(1, group="2", ended=False)], groups)),
    )

    assert (halves.kind, halves.ranks) == ("order", ())
    assert 0 not in pair.ranks


def test_a_rank_without_a_dump_is_named_when_all_others_wait() -> None:
    hang = hang_of(*((rank, dump([entry(5, ended=False)])) for rank in (0, 1, 3)))

    assert (hang.kind, hang.ranks) == ("no_dump", (2,))


def test_where_most_dumps_are_absent_nobody_is_named() -> None:
    hang = hang_of((0, dump([entry(5, ended=False)])))

    assert (hang.kind, hang.ranks) == ("unknown", ())


@pytest.mark.parametrize("other", [{"op": "broadcast"}, {"input_sizes": [[999]]}], ids=["operation", "size"])
def test_a_rank_that_calls_something_else_is_named(other: dict[str, Any]) -> None:
    hang = hang_of(
        *((rank, dump([entry(3, ended=False, **(other if rank == 1 else {}))])) for rank in range(WORLD))
    )  # fmt: skip

    assert (hang.kind, hang.ranks) == ("mismatch", (1,))


@pytest.mark.parametrize("like", [1, 2, 3], ids="{} like groups".format)
def test_of_two_ranks_the_one_that_calls_something_else_than_all_like_groups_is_named(like: int) -> None:
    """Pairs call four times; under number 4 rank 1 alone calls another operation. One other group proves nothing."""
    groups = {str(1 + pair): [2 * pair, 2 * pair + 1] for pair in range(1 + like)}
    ended = [[entry(seq, group=group, op=op) for seq, op in enumerate(("a", "b", "c"), 1)] for group in groups]
    hang = hang_of(*(
        (rank, dump([*ended[rank // 2],
                     entry(4, group=str(1 + rank // 2), op="x" if rank == 1 else "d", ended=rank > 1)], groups))
        for rank in range(2 * len(groups))
    ))  # fmt: skip

    assert (hang.kind, hang.ranks) == ("mismatch", (1,) if like > 1 else ())
    assert hang.possible == (() if like > 1 else (0, 1))


def test_an_early_dump_beside_a_call_that_differs_is_no_second_cause() -> None:
    """Rank 1 calls another operation than the others, which wait; the dump of rank 3 is older than theirs."""
    groups = {"0": [0, 1, 2], "1": [2, 3]}
    waits = [entry(1, ended=True), entry(2, ended=False)]
    hang = hang_of(
        (0, dump(waits, groups)),
        (1, dump([entry(1), entry(2, op="broadcast", ended=False)], groups)),
        (2, dump([entry(1, group="1"), *waits, entry(2, group="1", ended=False)], groups)),
        (3, dump([], groups)),
    )

    assert hang.ranks == (1,)
    assert hang.why[Rank(3)] == Why.EARLY_DUMP and 3 in hang.possible


def test_another_shape_with_as_many_elements_is_the_same_call() -> None:
    shapes: list[Any] = [[[1000]], None, [[10, 100]], [[1, 1000]]]
    hang = hang_of(
        *(
            (rank, dump([entry(3, ended=False, input_sizes=shape)] if shape else []))
            for rank, shape in enumerate(shapes)
        )
    )

    assert (hang.kind, hang.ranks) == ("hang", (1,))


def test_when_everybody_came_nobody_is_named() -> None:
    assert hang_of(*((rank, dump([entry(3, ended=False)])) for rank in range(WORLD))).kind == "stuck"
    assert hang_of(*((rank, dump([entry(3)])) for rank in range(WORLD))).kind == "none"


def test_the_status_counts_where_the_ring_has_forgotten() -> None:
    """Rank 2's entries are gone from its ring, and its status says that it ended number 7."""
    status = {"0": {"last_enqueued_collective": 7, "last_completed_collective": 7, "last_started_collective": 7}}
    hang = hang_of(
        *((rank, dump([entry(8, ended=False)])) for rank in (0, 1, 3)),
        (2, dump([entry(5)], pg_status=status)),
    )

    assert (hang.kind, hang.ranks) == ("hang", (2,))


def test_a_rank_whose_ring_forgot_the_group_is_not_named() -> None:
    """Rank 2's ring holds only the other group, and nothing says how far it came in this one."""
    groups = {"0": list(range(WORLD)), "1": [2]}
    busy = [entry(seq, group="1", record_id=9000 + seq) for seq in (1, 2)]
    others = [(rank, dump([entry(8, ended=False)], groups)) for rank in (0, 1, 3)]
    status = {"0": {"last_enqueued_collective": 7, "last_completed_collective": 7}}

    unknown = hang_of(*others, (2, dump(busy, groups)))
    missing = hang_of(*others, (2, dump(busy, groups, pg_status=status)))

    assert (unknown.kind, unknown.ranks, unknown.fronts[0].unknown) == ("unknown", (), (2,))
    assert (missing.kind, missing.ranks) == ("hang", (2,))


def test_gloo_leaves_scheduled_what_it_retired_and_reports_no_members() -> None:
    """Layout of a dump of torch 2.15 with gloo: state stays scheduled, the configuration has no name."""
    nameless = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    old = [entry(seq, state="scheduled", retired=True) for seq in (1, 2)]
    late = entry(3, state="scheduled", ended=False)
    hang = hang_of(*((rank, dump(old if rank == 1 else [*old, late], pg_config=nameless)) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks) == ("hang", (1,))


def test_real_dumps_of_a_job_that_hangs_in_gloo_name_the_rank_that_did_not_come() -> None:
    """Written by PyTorch 2.15: four ranks, five all_reduce that ended, and a sixth to which rank 2 never came."""
    problems = Problems()

    hang = find_hang(read_dumps([str(Path(__file__).parent / "hang_in_gloo")], problems).dumps)

    assert (hang.kind, hang.ranks, hang.dumps) == (HangKind.HANG, (2,), 4)
    assert [(front.seq, front.entered, front.missing) for front in hang.fronts] == [(6, (0, 1, 3), (2,))]
    assert not problems.answer()["count"]


def test_real_dumps_of_a_job_one_rank_of_which_is_stopped_name_it_as_most_likely() -> None:
    """Written by PyTorch 2.11 with NCCL 2.28.9: tensor groups 0, 1 and 2, 3, data groups 0, 2 and 1, 3.

    Rank 1 is stopped and leaves no dump. All hosts that do wait after the same line of the program.
    """
    problems = Problems()

    dumps = read_dumps([str(Path(__file__).parent / "hang_in_nccl")], problems).dumps
    hang = find_hang(dumps)

    assert (hang.kind, hang.ranks, hang.likely) == (HangKind.UNKNOWN, (), (1,))
    assert hang.why == {0: Why.GPU_INSTEAD, 1: Why.NO_DUMP, 3: Why.GPU_INSTEAD}
    assert not problems.answer()["count"]


@pytest.mark.parametrize("absent", [1, 3])
def test_a_rank_without_dump_is_looked_for_in_groups_whose_members_no_dump_tells(absent: int) -> None:
    """Written by PyTorch 2.11 over gloo, which reports no members: rank 1 is stopped; its dump lacks, or one more."""
    problems = Problems()

    dumps = read_dumps([str(Path(__file__).parent / "hang_in_gloo_groups")], problems).dumps
    hang = find_hang([dump for dump in dumps if dump.rank != absent])

    assert hang.kind == HangKind.UNKNOWN and not hang.ranks
    assert hang.why[Rank(1)] == Why.NO_DUMP
    assert not problems.answer()["count"]


def test_a_receive_whose_sender_never_came_names_the_sender() -> None:
    waits = entry(0, op="recv 1<-0", ended=False, is_p2p=True, record_id=2)
    hang = hang_of((0, dump([entry(1)], {"0": [0, 1]})), (1, dump([entry(1), waits], {"0": [0, 1]})))

    assert (hang.kind, hang.ranks, hang.pairs) == ("hang", (0,), ((1, 0),))


def test_timed_collectives_become_rows() -> None:
    rows = OperationRows()

    dump_of(dump([entry(seq, duration_ms=2.5) for seq in (1, 2)]), Rank(0), "rank0", Problems(), rows)

    assert len(rows) == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"collective_seq_id": -5}, "entries[1]: collective_seq_id"),
        ({"collective_seq_id": None}, "entries[1]: collective_seq_id"),
        ({"collective_seq_id": "9" * 400}, "entries[1]: collective_seq_id"),
    ],
)
def test_a_bad_entry_is_counted_with_its_place_and_the_rest_is_kept(bad: dict[str, Any], words: str) -> None:
    problems = Problems()

    found = dump_of(dump([entry(1), entry(2) | bad, entry(3)]), Rank(7), "trace_7", problems, OperationRows())

    assert found.parts["0"].completed == 3
    assert problems.count == 1
    assert problems.shown[0].startswith(f"trace_7: {words}")


def write(folder: Path, rank: int, value: Any, form: str = "pickle") -> None:
    if form == "pickle":
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, 2))
    else:
        (folder / f"trace_{rank}.json").write_text(json.dumps(value))


def ask(*arguments: str) -> tuple[dict[str, Any], str, int]:
    done = CliRunner().invoke(main, ["diagnose", *arguments])
    return json.loads(done.stdout) if done.exit_code == 0 else {}, done.stderr, done.exit_code


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_command_names_the_rank_and_says_what_it_can_claim(tmp_path: Path, form: str) -> None:
    for rank in range(WORLD):
        write(tmp_path, rank, dump([entry(1), *([entry(2, ended=False)] if rank != 3 else [])]), form)

    found, _, status = ask("--flight-recorder", str(tmp_path))

    assert (status, found["kind"], found["ranks"]) == (0, "hang", [3])
    assert found["evidence"]["collectives"][0]["missing"] == [3]
    assert found["claims"]["flight_recorder"]["can"]
    assert found["claims"]["flight_recorder"]["cannot"]
    assert found["problems"] == {"count": 0, "first": []}


@pytest.mark.parametrize("foreign", [{"name": "meta", "host": "a"}, {"name": "meta", "ranks": None}, "1", [], None])
def test_what_is_no_group_in_the_configuration_is_no_problem(tmp_path: Path, foreign: Any) -> None:
    for rank in range(WORLD):
        value = dump([entry(1), entry(2)])
        value["pg_config"] |= {"meta": foreign}
        write(tmp_path, rank, value)
    found, _, _ = ask("--flight-recorder", str(tmp_path))

    assert (found["kind"], found["problems"]["count"]) == ("none", 0)


def test_sizes_that_refer_to_themselves_cost_nothing() -> None:
    tower: Any = ["ha"]
    for _ in range(40):
        tower = [tower] * 10
    ring: list[Any] = []
    ring.append(ring)

    hang = hang_of((0, dump([entry(3, ended=False, input_sizes=tower, input_dtypes=ring)])))

    assert hang.fronts[0].seq == 3


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_hostile_and_broken_dumps_are_named_and_the_others_still_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(3):
        write(folder, rank, dump([entry(1), *([entry(2, ended=False)] if rank else [])], {"0": [0, 1, 2]}))
    (folder / "nccl_trace_rank_3").write_bytes(pickle.dumps({"entries": [Runs()]}, 2))
    (folder / "nccl_trace_rank_4").write_bytes(b"\x80\x02]r\xff\xff\xff\xff")
    (folder / "nccl_trace_rank_5").write_bytes(b"")
    (folder / "nccl_trace_rank_6").write_text("hello")
    (folder / "trace_7.json").write_text('{"entries": [')
    (folder / "trace_8.json").write_text('{"entries": 1}')
    (folder / "notes").write_text("no rank")

    found, errors, status = ask("--flight-recorder", str(folder))

    assert (status, found["ranks"], found["problems"]["count"]) == (0, [0], 7)
    assert not (tmp_path / "ran").exists()
    for words in ("rank_3: byte", "GLOBAL", "rank_4: byte", "rank_5: the file is empty", "rank_6: neither",
                  "trace_7.json: not JSON", "trace_8.json: no Flight Recorder dump", "notes: its name"):  # fmt: skip
        assert words in errors


@pytest.mark.parametrize(
    ("seconds", "timeout", "kind"),
    [
        (0.2, 600_000, "unknown"),
        (29, 600_000, "unknown"),
        (40, 600_000, "hang"),
        (6, 5_000, "hang"),
        (-60, 5_000, "hang"),
        (1e6, 600_000, "hang"),
    ],
)
def test_a_rank_that_a_running_job_waits_for_at_the_moment_is_not_known_to_let_it_hang(
    tmp_path: Path, seconds: float, timeout: int, kind: str
) -> None:
    """Files say when they were written; where that is soon after the last call, nothing is known to hang."""
    ended = [entry(1), entry(2)]
    for rank in range(WORLD):
        write(tmp_path, rank, dump(ended if rank == 2 else [*ended, entry(3, ended=False, timeout_ms=timeout)]))
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", times=(0, 1_700_000_000 + 0.03 + seconds))
    found, _, _ = ask("--flight-recorder", str(tmp_path))
    evidence = found["evidence"]

    assert found["kind"] == kind
    assert (found["ranks"], list(evidence["possible"])) == (([2], []) if kind == "hang" else ([], ["2"]))
    if kind == "unknown":
        assert evidence["most_likely"] == [2]
        assert evidence["quiet_seconds"] == pytest.approx(seconds, abs=0.02)
        assert "the job may be running" in evidence["reason"] and "--hung" in evidence["reason"]
        assert ask("--flight-recorder", str(tmp_path), "--hung")[0]["ranks"] == [2]


@pytest.mark.parametrize("copied", [5, 1_000_000])
@pytest.mark.parametrize(("seconds", "kind"), [(0.2, "unknown"), (31, "hang")])
def test_the_time_at_which_the_recorder_found_a_kernel_started_is_that_of_the_dump(
    tmp_path: Path, seconds: float, kind: str, copied: int
) -> None:
    """The recorder notes that when it writes a dump, whatever the file's time says."""
    found_ns = 1_700_000_000_030_000_000 + int(seconds * 1e9)
    late = entry(3, ended=False, state="started", time_discovered_started_ns=found_ns)
    for rank in range(WORLD):
        write(tmp_path, rank, dump([entry(1), entry(2), *([late] if rank != 2 else [])]))
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", times=(0, 1_700_000_000 + copied))

    assert ask("--flight-recorder", str(tmp_path))[0]["kind"] == kind


def test_hung_is_about_dumps() -> None:
    done = CliRunner().invoke(main, ["diagnose", "--hung", "--ras", "before.json"])

    assert (done.exit_code, "--hung needs --flight-recorder" in done.stderr) == (2, True)


@pytest.mark.parametrize(("fresh", "kind"), [(0, "hang"), (1, "hang"), (3, "unknown")])
def test_what_ended_since_the_watchdog_looked_shows_that_the_job_ran(fresh: int, kind: str) -> None:
    """A single such dump may have been written before those of the others."""
    parts = []
    for rank in range(WORLD):
        ended = [entry(1), entry(2, retired=rank >= fresh)]
        parts.append((rank, dump(ended if rank == 2 else [*ended, entry(3, ended=False)])))
    hang = hang_of(*parts)

    assert (hang.kind, hang.ranks, hang.likely) == (kind, *(((2,), ()) if kind == "hang" else ((), (2,))))


@pytest.mark.parametrize("seed", range(2))
def test_simulated_running_jobs_accuse_nobody(seed: int) -> None:
    for number in range(12):
        hang = find_hang(dumps_of(running_job(seed, number, sizes=(16,)), Problems()))

        assert hang.ranks == () and hang.kind in ("unknown", "none")


@pytest.mark.parametrize("number", [21, 23, 31, 64])
def test_running_jobs_accuse_nobody_where_the_times_of_files_are_lost(number: int) -> None:
    dumps = dumps_of(running_job(7, number, (16, 16, 32)), Problems())

    hang = find_hang([replace(one, written=0.0) for one in dumps])

    assert (hang.kind, hang.ranks) == ("unknown", ())


def test_an_operation_under_way_in_a_running_job_is_not_known_to_be_stuck(tmp_path: Path) -> None:
    for rank in range(WORLD):
        write(tmp_path, rank, dump([entry(1), entry(2, ended=False)]))
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", times=(0, 1_700_000_001))
    found, _, _ = ask("--flight-recorder", str(tmp_path))

    assert (found["kind"], found["ranks"]) == ("unknown", [])
    assert "the job may be running" in found["evidence"]["reason"]


def test_a_dump_that_cannot_be_read_is_no_absent_one(tmp_path: Path) -> None:
    for rank in range(WORLD):
        write(tmp_path, rank, dump([entry(1), entry(2, ended=False)]))
    (tmp_path / "nccl_trace_rank_3").write_bytes(b"\x80\x02}q")
    found, _, _ = ask("--flight-recorder", str(tmp_path))

    assert (found["kind"], found["ranks"]) == ("unknown", [])
    assert list(found["evidence"]["possible"]) == ["0", "1", "2", "3"], "the others may be stuck in what all entered"
    assert found["evidence"]["possible"]["3"] == "its dump cannot be read"
    assert found["evidence"]["most_likely"] == [3]
    assert found["evidence"]["unreadable_dumps"] == {"3": str(tmp_path / "nccl_trace_rank_3")}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_protocols_are_read(tmp_path: Path, protocol: int) -> None:
    ended = [entry(1, extra=[1.5, None, True, -3, "é"]), entry(2)]
    for rank in range(WORLD):
        value = dump(ended if rank == 2 else [*ended, entry(3, ended=False)])
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(value, protocol=protocol))
    found, _, _ = ask("--flight-recorder", str(tmp_path))

    assert (found["kind"], found["ranks"]) == ("hang", [2])


def test_without_any_dump_the_command_ends_with_2_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_text("?")

    _, errors, status = ask("--flight-recorder", str(tmp_path))

    assert status == 2
    assert "trace_0: neither a pickle nor JSON" in errors
    assert ask("--flight-recorder", str(tmp_path / "nowhere"))[2] == 2


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "collective_seq_id", "process_group", "pg_id", "profiling_name", "state", "retired", "is_p2p", "input_sizes",
    "time_created_ns", "duration_ms",
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING), max_size=4), ANYTHING, ANYTHING)
def test_dumps_with_any_values_give_an_answer_or_a_refusal(entries: Any, config: Any, status: Any) -> None:
    problems, rows = Problems(), OperationRows()
    dumps = []
    for rank, value in itertools.product(
        (0, 1), ({"entries": [entry(2, ended=False) | item for item in entries], "pg_config": config,
                  "pg_status": status}, config)
    ):  # fmt: skip
        try:
            dumps.append(dump_of(value, Rank(rank), "x", problems, rows))
        except SourceError:
            continue

    json.dumps(find_hang(dumps).kind)
    rows.recorded()


def collectives(
    count: int, group: str = "0", *, pending: int = 0, first: int = 1, **more: Any
) -> list[dict[str, Any]]:
    """Collectives of a group, the last `pending` of which have not ended."""
    numbers = range(first, first + count)
    return [
        entry(seq, group=group, ended=seq < first + count - pending, record_id=seq - first, **more) for seq in numbers
    ]


def test_a_gpu_that_stops_within_what_all_others_have_ended_is_named_and_not_those_that_went_on() -> None:
    hang = hang_of(*((rank, dump(collectives(6, pending=3 if rank == 2 else 2))) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.possible) == ("hang", (2,), ())
    assert "GPU" in hang.why[2]


def test_two_gpus_that_do_not_end_the_same_are_listed_and_neither_is_named() -> None:
    hang = hang_of(*((rank, dump(collectives(6, pending=3 if rank in (1, 2) else 2))) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.possible) == ("stuck", (), (1, 2))


def test_a_dump_written_early_is_distinguished_from_a_rank_that_stopped() -> None:
    """Rank 1's dump has not ended number 2, but others have ended number 5, which needed it; rank 3 did not come."""
    hang = hang_of(
        *((rank, dump(collectives(6, pending=1))) for rank in (0, 2)),
        (1, dump(collectives(3, pending=2))),
        (3, dump(collectives(5))),
    )

    assert (hang.kind, hang.ranks, hang.possible, hang.early) == ("unknown", (3,), (1,), (1,))


def test_a_dump_written_early_is_named_when_nothing_else_explains_the_hang() -> None:
    hang = hang_of(
        *((rank, dump(collectives(6, pending=1))) for rank in (0, 2, 3)), (1, dump(collectives(3, pending=2)))
    )

    assert (hang.kind, hang.ranks, hang.early) == ("hang", (1,), (1,))


def test_a_missing_dump_next_to_a_proven_cause_of_all_waits_is_possible_and_no_doubt() -> None:
    hang = hang_of(*((rank, dump(collectives(5 + (rank != 3), pending=int(rank != 3)))) for rank in (0, 1, 3)))

    assert (hang.kind, hang.ranks, hang.possible) == ("hang", (3,), (2,))


def test_ranks_that_differ_keep_all_others_waiting_whatever_a_missing_dump_holds() -> None:
    calls = [entry(1), entry(2, ended=False)]
    other = [entry(1), {**entry(2, ended=False), "profiling_name": "nccl:broadcast"}]

    hang = hang_of(*((rank, dump(other if rank == 3 else calls)) for rank in (0, 1, 3)))

    assert (hang.kind, hang.ranks, hang.possible) == ("mismatch", (3,), (2,))


def test_a_kernel_that_does_not_start_is_distinguished_from_those_that_wait_in_it_where_starts_were_recorded() -> (
    None
):
    started = {"state": "started", "time_discovered_started_ns": 5}
    dumps = []
    for rank in range(WORLD):
        entries = [entry(1, record_id=0, time_discovered_started_ns=4), entry(2, record_id=1, ended=False)]
        entries[1] |= {"state": "scheduled"} if rank == 1 else started
        dumps.append((rank, dump(entries)))

    hang = hang_of(*dumps)

    assert (hang.kind, hang.ranks) == ("hang", (1,))


def test_a_host_that_stopped_while_its_gpu_waits_for_another_rank_is_listed() -> None:
    """Rank 2's GPU stopped; rank 1's host called less than the others with the same calls pending."""
    ahead = {0: 3, 1: 1, 2: 4, 3: 3}
    hang = hang_of(
        *((rank, dump(collectives(5 + ahead[rank] - (rank == 2), pending=ahead[rank]))) for rank in range(WORLD))
    )

    assert (hang.kind, hang.ranks, hang.possible) == ("unknown", (2,), (1,))


def test_an_absent_dump_is_not_named_where_the_only_rank_that_waits_for_it_may_have_stopped() -> None:
    """Rank 1 may be gone; or it ended number 2, which rank 0's GPU did not, and now waits for rank 0 in number 3."""
    groups = {"1": [0, 1], "2": [0, 2], "3": [1, 3]}
    waits = [*collectives(3, "1", pending=2), entry(1, group="2", ended=False, record_id=3)]
    hang = hang_of(
        (0, dump(waits, groups)),
        (2, dump([entry(1, group="2", ended=False)], groups)),
        (3, dump([], groups)),
    )

    assert (hang.kind, hang.ranks) == ("unknown", ())
    assert {0, 1} <= set(hang.possible)
    assert "left no dump" in hang.reason


def test_ranks_of_a_node_without_dumps_are_most_likely_where_only_their_partners_could_be_it_instead() -> None:
    """Ranks 2 and 3 are gone; each of their partners 0 and 1 waits in a group of two."""
    groups = {"1": [0, 2], "2": [1, 3], "3": [2, 3]}
    hang = hang_of(*((rank, dump(collectives(3, str(rank + 1), pending=2), groups)) for rank in (0, 1)))

    assert (hang.kind, hang.ranks, hang.possible, hang.likely) == ("unknown", (), (0, 1, 2, 3), (2, 3))


def test_those_that_wait_for_lost_dumps_alone_are_listed_because_what_they_wait_in_may_end_on_nobody() -> None:
    hang = hang_of(*((rank, dump(collectives(5, pending=1), {"0": list(range(5))})) for rank in (0, 1, 3)))

    assert (hang.kind, hang.ranks, hang.possible, hang.likely) == ("unknown", (), (0, 1, 2, 3, 4), (2, 4))
    assert {hang.why[Rank(rank)] for rank in (0, 1, 3)} == {Why.STUCK_INSTEAD}


@pytest.mark.parametrize(
    ("lost", "kind", "named", "possible"), [(None, "no_dump", (2,), ()), (5, "unknown", (), (0, 1, 2))]
)
def test_a_rank_without_a_dump_is_not_certain_where_a_dump_is_lost_of_a_rank_that_nobody_waits_for(
    lost: int | None, kind: str, named: tuple[int, ...], possible: tuple[int, ...]
) -> None:
    groups = {"1": [0, 1, 2], "2": [3, 4, 5]}
    waiting = ((rank, dump(collectives(5, "1", pending=1), groups)) for rank in (0, 1))
    going = ((rank, dump(collectives(5, "2"), groups)) for rank in (3, 4, 5) if rank != lost)

    hang = hang_of(*waiting, *going)

    assert (hang.kind, hang.ranks, hang.possible) == (kind, named, possible)


def test_gpus_that_do_not_end_what_others_have_ended_are_not_all_named_when_one_may_have_waited_for_the_other() -> (
    None
):
    """A dump that was written just before an operation ended looks like one of a GPU that stopped."""
    groups = {"0": list(range(WORLD)), "1": [0, 1], "2": [2, 3]}

    def pair(group: str, behind: bool) -> dict[str, Any]:
        own = collectives(4, group, pending=int(behind))
        return dump([*own, entry(1, ended=False, record_id=9)], groups)

    hang = hang_of((0, pair("1", True)), (1, pair("1", False)), (2, pair("2", True)), (3, pair("2", False)))

    assert (hang.kind, hang.ranks, hang.possible) == ("unknown", (), (0, 2))
    assert hang.reason.startswith("2 ranks: its GPU does not end")


def test_of_two_partners_none_is_named_where_either_gpu_may_have_stopped() -> None:
    """Rank 0's GPU stopped in number 2; or it ended it, 1's stopped in number 3, and 0's dump is a little old."""
    groups = {"1": [0, 1]}
    hang = hang_of(
        (0, dump(collectives(4, "1", pending=3), groups)), (1, dump(collectives(4, "1", pending=2), groups))
    )

    assert (hang.kind, hang.ranks, hang.possible) == ("unknown", (), (0, 1))


def test_a_gpu_is_named_where_its_partner_cannot_have_stopped_instead() -> None:
    """Had rank 0 ended number 2, it would have come to the collective of 0 and 2 before it waits for 1 again."""
    groups = {"1": [0, 1], "2": [0, 2]}
    between = entry(1, group="2", op="broadcast", ended=False, record_id=2)
    own = collectives(4, "1", pending=3)
    hang = hang_of(
        (0, dump([*own[:2], between, *own[2:]], groups)),
        (1, dump(collectives(6, "1", pending=4), groups)),
        (2, dump([between, entry(2, group="2", op="reduce", ended=False, record_id=3)], groups)),
    )

    assert (hang.kind, hang.ranks, hang.possible) == ("hang", (0,), ())


def test_a_short_ring_buffer_that_holds_an_ended_call_of_every_group_hides_nothing() -> None:
    groups = {"0": list(range(WORLD)), "1": list(range(WORLD))}

    def ring(rank: int, ended: int) -> dict[str, Any]:
        calls = [
            *collectives(ended, "1", first=90),
            *collectives(9, first=90 - 8 * (rank == 3), pending=8 * (rank != 3)),
        ]
        return dump([call | {"record_id": 99 + place} for place, call in enumerate(calls)], groups)

    hides_nothing = hang_of(*((rank, ring(rank, 1)) for rank in range(WORLD)))
    may_hide = hang_of(*((rank, ring(rank, int(rank > 0))) for rank in range(WORLD)))

    assert (hides_nothing.kind, hides_nothing.ranks) == ("hang", (3,))
    assert may_hide.kind == "unknown"


def test_a_send_that_its_receiver_has_ended_and_its_sender_has_not_names_the_sender() -> None:
    """Its GPU stopped while sending, also where an earlier call of the sender waits in another stream."""
    groups = {"0": list(range(WORLD)), "1": [0, 1]}
    sent = entry(1, group="1", op="send 0->1", ended=False, is_p2p=True, record_id=1)
    received = entry(1, group="1", op="recv 1<-0", is_p2p=True, record_id=0)
    hang = hang_of(
        (0, dump([entry(1, ended=False, record_id=0), sent], groups)),
        (1, dump([received], groups)),
        *((rank, dump([entry(1, ended=False)], groups)) for rank in (2, 3)),
    )

    assert 0 in hang.why


def test_neither_side_of_a_send_is_certain_where_one_collective_alone_counts_it() -> None:
    """Rank 0's GPU may have stopped while sending, or rank 1 left out a receive."""
    groups = {"0": list(range(WORLD)), "1": [0, 1]}
    sent = entry(0, group="1", op="send 0->1", ended=False, state="scheduled", is_p2p=True, record_id=100)
    received = entry(0, group="1", op="recv 1<-0", is_p2p=True, record_id=100)
    last = entry(5, ended=False, state="scheduled", record_id=101)
    hang = hang_of(
        (0, dump([sent, last], groups)),
        (1, dump([received, last], groups)),
        *((rank, dump([entry(4, record_id=100), last])) for rank in (2, 3)),
    )

    assert (hang.kind, hang.ranks, hang.possible) == ("unknown", (), (0, 1))


def test_sends_called_together_have_the_state_of_their_batch() -> None:
    """Calls of a batch are recorded as scheduled for ever; the entry after them says that they ended."""

    def batch(name: str, seq: int, ended: bool) -> list[dict[str, Any]]:
        one = entry(0, op=name, is_p2p=True, p2p_seq_id=seq, ended=False, state="scheduled", record_id=2 * seq - 2)
        last = one | {"profiling_name": "nccl:coalesced", "state": "completed" if ended else "started"}
        return [one, last | {"retired": ended, "record_id": 2 * seq - 1}]

    groups = {"0": [0, 1]}
    sender = dump(batch("send 0->1", 1, True), groups)
    receiver = dump(batch("recv 1<-0", 1, True) + batch("recv 1<-0", 2, False), groups)

    hang = hang_of((0, sender), (1, receiver))

    assert (hang.kind, hang.ranks, hang.pairs) == ("hang", (0,), ((1, 0),))


def test_a_status_counts_for_the_group_that_the_rank_is_configured_for() -> None:
    """The same handle is group 1 for some ranks and group 2 for others; rank 2's ring buffer has dropped group 2."""
    status = {"7": {"last_enqueued_collective": 4, "last_completed_collective": 4}}
    busy = dump([entry(9, group="5", record_id=99)], {"2": [2, 3], "5": [2]}, pg_status=status)
    ended = dump([entry(4, group="1", pg_id=7)], {"1": [0, 1]})
    hang = hang_of(
        (0, ended), (1, ended), (2, busy), (3, dump([entry(5, group="2", pg_id=7, ended=False)], {"2": [2, 3]}))
    )

    assert (hang.kind, hang.ranks) == ("hang", (2,))


def test_numbers_of_a_status_are_not_used_where_they_count_sends_too() -> None:
    """The library keeps one status for sends and collectives; this 40 is a send's."""
    status = {"0": {"last_enqueued_collective": 40, "last_completed_collective": 40}}
    sent = entry(2, op="send 0->1", is_p2p=True)
    hang = hang_of(
        *((rank, dump([*collectives(1 + (rank != 1), pending=int(rank != 1)), sent], pg_status=status))
          for rank in range(WORLD))
    )  # fmt: skip

    assert (hang.kind, hang.ranks) == ("hang", (1,))


@pytest.mark.parametrize("seed", range(4))
def test_simulated_hangs_name_all_causes_and_nobody_else_or_say_unknown(seed: int) -> None:
    results = []
    for job in hang_jobs(8, seed, sizes=(16,)):
        problems = Problems()
        hang = find_hang(dumps_of(job, problems))
        results.append(outcome(job, hang.kind, hang.ranks, hang.possible + hang.cycle))
        assert (hang.kind == "unknown") == bool(hang.reason)
        assert not problems.count

    assert set(results) <= {"right", "unknown"}
    assert results.count("right") >= 4


def gloo(seq: int, *, ended: bool = True, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One entry as gloo's recorder writes it: nothing is ever seen to start or to end."""
    return entry(seq, ended=ended, state="scheduled", profiling_name=f"gloo:{op}", **more)


def test_what_gloo_retired_may_have_failed_so_a_rank_that_did_not_call_it_is_most_likely() -> None:
    """Rank 2 never calls the third all_reduce; two of the others time out, and the third still waits."""
    over, waits = [gloo(seq) for seq in (1, 2, 3)], [gloo(1), gloo(2), gloo(3, ended=False)]
    hang = hang_of((0, dump(waits)), (1, dump(over)), (2, dump(over[:2])), (3, dump(over)))
    all_failed = hang_of(*((rank, dump(over[:2] if rank == 2 else over)) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.likely) == ("unknown", (), (2,))
    assert (all_failed.kind, all_failed.why) == ("unknown", {2: Why.NOT_CALLED})


def test_a_rank_that_failed_because_its_peer_died_is_not_named() -> None:
    """Rank 2 is killed; rank 3 of its tensor group fails there; then rank 1 waits for rank 3."""
    groups = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}

    def calls(rank: int, last: int) -> dict[str, Any]:
        tensor, data = "1" if rank < 2 else "2", "3" if rank % 2 == 0 else "4"
        entries = [gloo(1), gloo(1, group=data), gloo(1, group=tensor), gloo(2, group=tensor)]
        return dump([*entries, gloo(2, group=data, ended=False)][:last], groups)

    hang = hang_of((0, calls(0, 5)), (1, calls(1, 5)), (3, calls(3, 4)))

    assert 3 not in hang.ranks
    assert hang.kind == "unknown"
    assert {rank: hang.why[Rank(rank)] for rank in (2, 3)} == {2: Why.NO_DUMP, 3: Why.ENDED_OR_FAILED}


def test_hosts_may_wait_in_sends_that_gloo_counts_but_does_not_record() -> None:
    """`op_id` counts sends and receives too: two stages of a pipeline come to an all_reduce, two do not."""
    before = [gloo(1, op_id=9), gloo(2, op_id=18)]
    hang = hang_of(
        *((rank, dump([*before, gloo(3, ended=False, op_id=27)] if rank > 1 else before)) for rank in range(WORLD))
    )
    nothing = hang_of(*((rank, dump(before)) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.why) == ("unknown", (), dict.fromkeys((0, 1), Why.UNRECORDED))
    assert (nothing.kind, nothing.why) == ("unknown", dict.fromkeys(range(WORLD), Why.UNRECORDED))


def test_one_rank_that_counts_what_is_not_recorded_shows_that_all_may_wait_there() -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL gloo has a barrier before each call, in which rank 0 receives from all."""
    hang = hang_of(*((rank, dump([gloo(1), gloo(2, op_id=5 if rank == 0 else 2)])) for rank in range(WORLD)))

    assert (hang.kind, hang.why) == ("unknown", dict.fromkeys(range(WORLD), Why.UNRECORDED))


def test_dumps_without_calls_say_that_nothing_was_recorded() -> None:
    hang = hang_of(*((rank, dump([])) for rank in range(WORLD)))

    assert hang.kind == "unknown" and "the recorder was off" in hang.reason


def test_the_last_rank_is_looked_for_where_only_a_nameless_group_tells_of_it() -> None:
    """Rank 3 is stopped and leaves no dump; gloo names the members of its groups under no name."""
    nameless = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}
    hang = hang_of(*((rank, dump([gloo(1), gloo(2, ended=False)], pg_config=nameless)) for rank in range(3)))

    assert (hang.kind, hang.ranks) == ("no_dump", (3,))


def test_one_rank_that_calls_several_operations_too_many_is_most_likely() -> None:
    """A step more than the others: three buckets of gradients in flight; then a tensor group alone."""
    ended = [entry(seq) for seq in range(1, 5)]
    more = [*ended, *(entry(seq, ended=False) for seq in (5, 6, 7))]
    hang = hang_of(*((rank, dump(more if rank == 2 else ended)) for rank in range(WORLD)))
    groups = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}

    def calls(rank: int) -> list[dict[str, Any]]:
        tensor = "1" if rank < 2 else "2"
        done = [entry(1, group=tensor), entry(1)]
        return [*done, entry(2, group=tensor, ended=False)] if rank == 2 else done

    in_group = hang_of(*((rank, dump(calls(rank), groups)) for rank in range(WORLD)))

    assert (hang.kind, hang.ranks, hang.likely) == ("unknown", (), (2,))
    assert (in_group.kind, in_group.ranks, in_group.likely) == ("unknown", (), (2,))


def test_a_rank_whose_group_lacks_members_that_no_dump_names_is_not_named_for_a_failure_there() -> None:
    """Six ranks, tensor groups of two; the last rank is killed, so nothing tells that rank 4 had a peer."""

    def calls(rank: int) -> dict[str, Any]:
        tensor, data = str(1 + rank // 2), str(4 + rank % 2)
        two = [gloo(seq, group=tensor, process_group=(tensor, "tp")) for seq in (1, 2)]
        three = [gloo(seq, group=data, process_group=(data, "dp"), ended=seq < 2 or rank % 2 == 1) for seq in (1, 2)]
        return dump([gloo(1), two[0], three[0], two[1], *([] if rank == 4 else three[1:])], pg_config={})

    hang = hang_of(*((rank, calls(rank)) for rank in range(5)))

    assert (hang.kind, hang.ranks, hang.why[Rank(4)]) == ("unknown", (), Why.ENDED_OR_FAILED)


def test_a_dump_in_json_leaves_out_the_list_of_calls_where_there_are_none() -> None:
    value = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}

    assert dump_of(value, Rank(0), "trace_0", Problems(), OperationRows()).members == {"0": (0, 1)}
