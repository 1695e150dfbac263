"""Operators that are killed at any moment; nothing else acts on these nodes."""

import contextlib
import os
import signal
from typing import Any

import pytest

from ingero_testing.processes import wait_until
from ingero_testing.taint_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]


def killed_while_tainting(lab: Lab, start: Any, victim: str, timeout: float) -> None:
    """An operator that is killed before, while or after it marks a node."""
    with start() as instance:
        wait_until(lambda: instance.page()["ingero_operator_reconciles_total"] > 0, "the first reconcile")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: lab.note(victim) is not None, "the mark", timeout)
        os.kill(instance.running.process.pid, signal.SIGKILL)
        instance.running.process.wait(10)


def finished(lab: Lab, start: Any, victim: str, rounds: int) -> None:
    """An operator that lives to see the end of it."""
    with start():
        wait_until(lambda: lab.taint(victim) is not None, "the taint")
        lab.says.stragglers = set()
        wait_until(lambda: lab.marked() == set(), "the release")
        wait_until(lambda: len(lab.events("Released")) == rounds, "the Event")


def test_killed_anywhere_it_converges_without_a_second_event_or_a_stray_taint(lab: Lab, start: Any) -> None:
    lab.begin(interval="1ms")
    for number, timeout in enumerate((0.6, 2.0)):
        victim = lab.names[number]
        lab.says.stragglers = {victim}
        killed_while_tainting(lab, start, victim, timeout)
        finished(lab, start, victim, number + 1)

    assert len(lab.events("Tainted")) == 2 and len(lab.events("TaintOverridden")) == 0
    with start():
        lab.delete()


def test_the_lease_has_one_holder_and_passes_on(lab: Lab, start: Any) -> None:
    lab.begin()
    flags = ("--lease-duration", "3s")
    with start(*flags, election=True) as first:
        wait_until(lambda: first.page()["ingero_operator_leading"] == 1, "the first to lead")
        with start(*flags, election=True) as second:
            lab.says.stragglers = {lab.names[0]}
            wait_until(lambda: lab.taint(lab.names[0]) is not None, "the taint")
            assert second.page()["ingero_operator_leading"] == 0
            assert second.page()["ingero_operator_reconciles_total"] == 0

            os.kill(first.running.process.pid, signal.SIGKILL)
            wait_until(lambda: second.page()["ingero_operator_leading"] == 1, "the second to lead")
            lab.says.stragglers = set()
            wait_until(lambda: lab.marked() == set(), "the release")
            assert lab.events("TaintOverridden") == []
            lab.delete()


def test_an_outage_of_the_api_server_is_survived_and_what_it_prevented_is_done_afterwards(
    lab: Lab, start: Any
) -> None:
    lab.begin(maxPerDay=1)
    first, second = lab.names[:2]
    with start() as operator:
        lab.says.stragglers = {first}
        wait_until(lambda: lab.taint(first) is not None, "the taint")
        lab.plane.stop_server()
        lab.says.stragglers = {second}

        def tries() -> float:
            return operator.page()['ingero_operator_api_requests_total{method="dry run"}']

        before = tries()
        wait_until(lambda: tries() > before + 1, "two tries to taint")
        lab.plane.start_server()

        wait_until(lambda: lab.marked() == {second}, "the release of one and the taint of the other")
        assert operator.running.process.poll() is None
        lab.delete()
