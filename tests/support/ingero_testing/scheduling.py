"""How the tests are spread over processes: by file, in spite of processes that die, and serial ones at the end.

pytest-xdist 3.8 gives the finished groups of a process that died to the next one, which then waits for ever: it is
never told that it has nothing to do. https://github.com/pytest-dev/pytest-xdist/issues/1378
"""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

SERIAL = "serial"
"""The group of the tests that need the machine for themselves: they begin when every other test has ended."""


class SuiteScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """By group or else by file, so that the fixtures of a file are made once.

    Of a process that died, only what it had not begun is left to others.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process away and name the test that it died of, which is not tried again."""
        groups = {group: dict(tests) for group, tests in self.assigned_work[node].items() if not all(tests.values())}
        self.assigned_work[node] = groups
        died_of: str | None = super().remove_node(node)
        if died_of is not None:
            group = self._split_scope(died_of)
            self.workqueue[group][died_of] = True
            if all(self.workqueue[group].values()):
                del self.workqueue[group]
        self._begin_serial()
        return died_of

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a test has ended; the last one of all that may run side by side lets the serial ones begin."""
        super().mark_test_complete(node, item_index, duration)
        self._begin_serial()

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        if SERIAL in self.workqueue:
            self.workqueue.move_to_end(SERIAL)
        if not self._only_serial_left():
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while (
            self.workqueue
            and not self._only_serial_left()
            and not node.shutting_down
            and self._pending_of(self.assigned_work[node]) < 2
        ):
            self._assign_work_unit(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()  # a process begins its last test when it knows that it is the last
        self._begin_serial()

    def _only_serial_left(self) -> bool:
        return list(self.workqueue) == [SERIAL]

    def _begin_serial(self) -> None:
        """Let all processes but one end, and give that one the serial tests when nobody else has a test."""
        if not self._only_serial_left():
            return
        by_what_is_left = sorted((node for node in self.nodes if not node.shutting_down), key=self._left)
        if not by_what_is_left:
            return
        *others, last = by_what_is_left
        for node in others:
            node.shutdown()
        if not any(self._left(node) for node in self.nodes if node is not last):
            super()._assign_work_unit(last)
            last.shutdown()

    def _left(self, node: WorkerController) -> int:
        """Number of tests that a process has not ended."""
        return int(self._pending_of(self.assigned_work[node]))
