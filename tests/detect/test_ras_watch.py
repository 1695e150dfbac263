"""Statuses of NCCL RAS as they come: which job hangs, since when, and when it goes on."""

from typing import Any

import pytest

from ingero_contract.values import HangVerdict
from ingero_detect.hangs.ras_status import RasStatus, RasUnreadable, parse_status
from ingero_detect.hangs.ras_watch import MAX_JOBS, RasFinding, RasWatch
from ingero_testing.ras_service import communicator, gone, rank, status, world


def at(seconds: float, *comms: Any) -> RasStatus:
    problems: list[str] = []
    found = parse_status(status(*comms).encode(), problems.append)
    assert not problems
    found.at = 1000 + seconds
    return found


def take(watch: RasWatch, seconds: float, *comms: Any) -> list[tuple[HangVerdict, list[int | str]]]:
    """Hangs, and those that have ended."""
    return [kind_and_ranks(one) for one in watch.take(at(seconds, *comms)) if one.since or one.verdict.ranks]


def kind_and_ranks(one: RasFinding) -> tuple[HangVerdict, list[int | str]]:
    return one.verdict.kind, [item.name for item in one.verdict.ranks]


def test_a_job_hangs_once_nothing_has_moved_for_half_a_minute_and_is_reported_until_it_goes_on() -> None:
    watch = RasWatch()
    assert take(watch, 0, world([8, 8, 7, 8])) == []
    assert take(watch, 10, world([9, 9, 7, 9])) == []
    assert take(watch, 39, world([9, 9, 7, 9])) == []

    (found,) = watch.take(at(40, world([9, 9, 7, 9])))
    assert (kind_and_ranks(found), found.since, watch.hanging) == ((HangVerdict.HANG, [2]), 1010, 1)
    assert take(watch, 70, world([9, 9, 7, 9])) == [(HangVerdict.HANG, [2])]
    assert take(watch, 80, world([9, 9, 9, 9])) == [(HangVerdict.NONE, [])]
    assert take(watch, 120, world([9, 9, 9, 9])) == [] and watch.hanging == 0


def test_a_pause_of_all_ranks_is_no_hang() -> None:
    watch = RasWatch()
    assert [take(watch, seconds, world([9, 9, 9])) for seconds in range(0, 300, 30)] == [[]] * 10


def test_a_dead_process_is_reported_when_the_others_stand_still_and_not_while_they_go_on() -> None:
    def comm(count: int) -> Any:
        return communicator("0xa", [rank(0, 0, count), rank(1, 1, count)], [gone(2, 2, dead=True)])

    moving = RasWatch()
    assert [take(moving, seconds, comm(seconds)) for seconds in range(0, 300, 30)] == [[]] * 10
    still = RasWatch()
    assert take(still, 0, comm(5)) == [] and take(still, 30, comm(5)) == [(HangVerdict.DEAD, [2])]


def test_a_process_that_does_not_answer_while_nothing_moves_is_possible_and_not_named() -> None:
    watch, comm = RasWatch(), communicator("0xa", [rank(0, 0, 5), rank(1, 1, 5)], [gone(2, 2, dead=False)])
    take(watch, 0, comm)
    (found,) = watch.take(at(30, comm))
    assert kind_and_ranks(found) == (HangVerdict.UNKNOWN, [])
    assert [item.name for item in found.verdict.possible] == [2]


def test_a_job_that_makes_another_communicator_goes_on() -> None:
    watch, second = RasWatch(), communicator("0xb", [rank(0, 0, 1), rank(1, 1, 1)])
    take(watch, 0, world([9, 8]))
    assert take(watch, 30, world([9, 8])) == [(HangVerdict.HANG, [1])]
    assert take(watch, 60, world([9, 9]), second) == [(HangVerdict.NONE, [])]


def test_jobs_that_share_an_address_are_told_apart() -> None:
    watch, other = RasWatch(), communicator("0xb", [rank(0, 0, 4), rank(1, 1, 4)])
    take(watch, 0, world([9, 8]))
    assert take(watch, 10, other) == []
    assert take(watch, 40, world([9, 8])) == [(HangVerdict.HANG, [1])]
    other["ranks"][0]["collective_counts"]["AllReduce"] = 5
    assert take(watch, 50, other) == [] and watch.hanging == 1


def test_jobs_are_bounded_and_the_oldest_is_forgotten() -> None:
    watch = RasWatch()
    for number in range(MAX_JOBS + 1):
        take(watch, number, communicator(f"0x{number}", [rank(0, 0, 9), rank(1, 1, 8)]))
    assert take(watch, 100, communicator("0x0", [rank(0, 0, 9), rank(1, 1, 8)])) == []
    assert take(watch, 101, communicator("0x5", [rank(0, 0, 9), rank(1, 1, 8)])) == [(HangVerdict.HANG, [1])]


def test_a_damaged_status_names_nobody() -> None:
    watch = RasWatch()
    watch.take(at(0, world([9, 8])), damaged=True)
    (found,) = watch.take(at(60, world([9, 8])), damaged=True)
    assert kind_and_ranks(found) == (HangVerdict.UNKNOWN, [])


def test_all_hosts_of_a_job_call_it_by_the_same_name() -> None:
    first, second = world([9, 8]), communicator("0xb", [rank(0, 0, 1)])
    assert at(0, first, second).job == at(9, second, world([11, 11])).job != at(0, first).job
    assert at(0, first).hosts == ["10.0.0.0", "10.0.0.1"]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"communicators": []}', b'{"communicators": 1}'])
def test_what_is_no_status_is_refused(data: bytes) -> None:
    with pytest.raises(RasUnreadable):
        parse_status(data, lambda problem: None)
