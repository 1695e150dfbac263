"""Distributes tests over processes: by file, serial ones at the end; it survives processes that die.

pytest-xdist 3.8 gives the finished groups of a process that died to another process, which then waits for ever,
because it gets no message that it has nothing to do. https://github.com/pytest-dev/pytest-xdist/issues/1378
"""

from contextlib import suppress

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

SERIAL = "serial"
"""The group of tests that need the whole machine: they begin when all other tests have ended."""


class SuiteScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Schedules by group, otherwise by file, so that the fixtures of a file are made once.

    If a process dies, other processes run the tests that it had not begun.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process and return the test during which it died, which is not run again."""
        assigned: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        groups = {group: dict(tests) for group, tests in assigned.items()}
        left = ((tests, test) for tests in groups.values() for test, ended in tests.items() if not ended)
        of_group, died_of = next(left, (None, None))
        if of_group is None or died_of is None:
            return None
        of_group[died_of] = True  # before others get the group
        self.workqueue.update({group: tests for group, tests in groups.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        self._begin_serial()
        return died_of

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Record that a test has ended; after the last parallel test the serial ones begin."""
        super().mark_test_complete(node, item_index, duration)
        self._begin_serial()

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        if SERIAL in self.workqueue:
            self.workqueue.move_to_end(SERIAL)
        if not self._only_serial_left():
            self._give_next_group(node)

    def _give_next_group(self, node: WorkerController) -> None:
        """Give a process the next group; one that has died meanwhile has it until `remove_node` is told of that."""
        with suppress(OSError):
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # a process that takes the place of a dead one asks again when it has found its tests
        super()._reschedule(node)
        while (
            self.workqueue
            and not self._only_serial_left()
            and not node.shutting_down
            and self._pending_of(self.assigned_work[node]) < 2
        ):
            self._assign_work_unit(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()  # a process begins its last test only after it got the shutdown
        self._begin_serial()

    def _only_serial_left(self) -> bool:
        return list(self.workqueue) == [SERIAL]

    def _begin_serial(self) -> None:
        """End all processes but one, and give that one the serial tests when no other process has a test left."""
        if not self._only_serial_left():
            return
        ready = (node for node in self.nodes if node in self.registered_collections and not node.shutting_down)
        by_what_is_left = sorted(ready, key=self._left)
        if not by_what_is_left:
            return
        *others, last = by_what_is_left
        for node in others:
            node.shutdown()
        if not any(self._left(node) for node in self.nodes if node is not last):
            self._give_next_group(last)
            last.shutdown()

    def _left(self, node: WorkerController) -> int:
        """Number of tests that a process has not finished."""
        return int(self._pending_of(self.assigned_work[node]))
