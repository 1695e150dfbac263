"""Asking the scheduler for short slices."""

import os
import threading

import pytest

from ingero_kit import slices


def test_a_thread_may_ask_and_keeps_its_niceness() -> None:
    found: list[tuple[bool, int, int]] = []

    def ask() -> None:
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        asked = slices.ask_for_short_slices()
        found.append((asked, before, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()

    ((_, before, after),) = found
    assert before == after
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_machine_without_the_call_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices.platform, "machine", lambda: "riscv64")

    assert not slices.ask_for_short_slices()
    assert not slices.ask_for_usual_slices()
