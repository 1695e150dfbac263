"""Reads the pods of a workload to say why it is unavailable: by label, one page at most, and seldom."""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ingero_contract.kubernetes import OWNER_LABEL
from ingero_kit.clock import Clock
from ingero_operator.api_client import ApiClient
from ingero_operator.cache import OwnerKey
from ingero_operator.failures import Failures, Operation, OperationKind
from ingero_operator.kinds import POD, Manifest
from ingero_operator.pod_problems import PodProblem, Reported, common_problem, late, late_problem, trace_problems
from ingero_operator.readiness import Server, ask_ready
from ingero_operator.render.common import NAME
from ingero_operator.tracer_polls import ask_tracers
from ingero_operator.workloads import unavailable

MOST_PODS: Final = 200
"""Pods of a workload that are read at most."""
UNAVAILABLE_SECONDS: Final = 15.0
"""Least time between two reads while the workload is not available."""
AVAILABLE_SECONDS: Final = 600.0
"""Least time between two reads while it is."""
LACKING_SECONDS: Final = 60.0
"""Least time between two reads while it is, and its pods lack something."""

Examine = Callable[[list[Manifest]], Awaitable[PodProblem | None]]

_NOT_READY: Final = "why they are not ready"
_TRACING: Final = "what tracing lacks"
"""The questions."""


@dataclass
class _PodsRead:
    problem: PodProblem | None = None
    read: float = -math.inf


@dataclass
class PodReader:
    """Keeps one result for each workload and question."""

    api: ApiClient
    clock: Clock
    failures: Failures
    ask_tracers: Callable[[list[Manifest]], Awaitable[Mapping[str, Reported]]] = ask_tracers
    reads: int = 0
    _addresses: dict[OwnerKey, tuple[float, str, tuple[str, ...]]] = field(default_factory=dict)
    _known: dict[OwnerKey, dict[tuple[str, str], _PodsRead]] = field(default_factory=dict)

    async def why_unavailable(
        self, key: OwnerKey, component: str, live: Manifest | None, server: Server | None = None
    ) -> PodProblem | None:
        """Why a workload is unavailable, by its pods; `None` where it is available or they do not say.

        `server`: how pods are asked that run and are not ready for long. A DaemonSet is not judged by time: of many
        nodes one is always away.
        """
        if live is None or not unavailable(live):
            self.failures.resolve(key, _reading(component, _NOT_READY))
            return None
        timed = live.get("kind") != "DaemonSet"

        async def examine(pods: list[Manifest]) -> PodProblem | None:
            problem = common_problem(pods)
            if problem or not timed:
                return problem
            overdue = late(pods, self.clock())
            return late_problem(overdue, await ask_ready(overdue, server) if server else {})

        return await self._problem(key, component, _NOT_READY, examine, UNAVAILABLE_SECONDS)

    async def trace_problem(self, key: OwnerKey, component: str, live: Manifest | None) -> PodProblem | None:
        """What tracing lacks on some nodes, by the pods of the tracer."""
        if live is None:
            return None
        seconds = UNAVAILABLE_SECONDS if unavailable(live) else self._available_seconds(key)

        async def examine(pods: list[Manifest]) -> PodProblem | None:
            return trace_problems(pods, await self.ask_tracers(pods))

        return await self._problem(key, component, _TRACING, examine, seconds)

    async def addresses(self, key: OwnerKey, component: str, wanted: int, live: Manifest | None) -> tuple[str, ...]:
        """IP addresses of the running pods of a component.

        They are not older than `UNAVAILABLE_SECONDS`, nor than the last change of the workload, whose status changes
        with every pod that is replaced.
        """
        version = str(((live or {}).get("metadata") or {}).get("resourceVersion", ""))
        read, before, found = self._addresses.get(key, (-math.inf, "", ()))
        reading = Operation(OperationKind.READ, f"pods of {component}: their addresses")
        current = version == before and self.clock() - read < UNAVAILABLE_SECONDS
        if current or self.failures.backs_off(key, reading):
            return found
        self.reads += 1
        with self.failures.guarded(key, reading):
            found = pod_addresses(await self._list(key, component))[: wanted + 1]  # one more during an upgrade
            self._addresses[key] = self.clock(), version, found
        return found

    async def _list(self, key: OwnerKey, component: str) -> list[Manifest]:
        query = {"labelSelector": f"{NAME}=ingero-{component},{OWNER_LABEL}={key[2]}", "limit": str(MOST_PODS)}
        page = await self.api.request("GET", POD.path(key[1]), query=query)
        return list(page.get("items") or [])

    async def _problem(
        self, key: OwnerKey, component: str, question: str, examine: Examine, seconds: float
    ) -> PodProblem | None:
        """The answer to a question by the pods of a component, not older than so many seconds."""
        known = self._known.setdefault(key, {}).setdefault((component, question), _PodsRead())
        reading = _reading(component, question)
        if self.clock() - known.read < seconds or self.failures.backs_off(key, reading):
            return known.problem
        self.reads += 1
        with self.failures.guarded(key, reading):
            known.problem = await examine(await self._list(key, component))
            known.read = self.clock()
        return known.problem

    def _available_seconds(self, key: OwnerKey) -> float:
        """How soon the pods of a workload that is available are worth another read."""
        lacking = any(
            read.problem for (_, question), read in self._known.get(key, {}).items() if question == _TRACING
        )
        return LACKING_SECONDS if lacking else AVAILABLE_SECONDS

    def check_after(self, key: OwnerKey, children: Iterable[Manifest]) -> float:
        """Seconds until the pods of a resource's workloads are worth another read."""
        workloads = [item for item in children if item.get("kind") in ("Deployment", "DaemonSet", "StatefulSet")]
        return UNAVAILABLE_SECONDS if any(map(unavailable, workloads)) else self._available_seconds(key)

    def forget(self, key: OwnerKey) -> None:
        """Drop what is known of a resource that is gone."""
        self._known.pop(key, None)
        self._addresses.pop(key, None)


def pod_addresses(pods: list[Manifest]) -> tuple[str, ...]:
    """IP addresses of the pods that run and are not being deleted, sorted."""
    return tuple(
        sorted(
            str(pod["status"]["podIP"])
            for pod in pods
            if (pod.get("status") or {}).get("podIP")
            and pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        )
    )


def _reading(component: str, question: str) -> Operation:
    return Operation(OperationKind.READ, f"pods of {component}: {question}")
