"""Tests over several processes that end when one of them dies.

pytest-xdist 3.8 gives the finished groups of a process that died to the next one, which then waits for ever: it is
never told that it has nothing to do. https://github.com/pytest-dev/pytest-xdist/issues/1378
"""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Surviving(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """By groups; of a process that died, only what it had not begun is left to others."""

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
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()  # a process begins its last test when it knows that it is the last
