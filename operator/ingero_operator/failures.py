"""What could not be done for a resource: each with its own pause before the next try, and what people are told of it.

A failure is a value here and never ends a reconcile: whatever else a resource needs is done all the same.
"""

import math
import random
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.api_client import ApiError
from ingero_operator.cache import OwnerKey
from ingero_operator.errors import ReconcileError

log = get(__name__)

LEAST_SECONDS: Final = 0.5
"""Least time to the next look: what is due may have to wait for something else."""

Operation = tuple[str, str]
"""Group, and what it is in words: `("child", "Service prod-fleet")`."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One thing that failed, at least once in a row."""

    error: ReconcileError
    transient: bool
    about: str
    """What was tried, shortened: something else may be tried at once."""
    count: int
    due: float

    @property
    def reported(self) -> bool:
        """Whether people hear of it: of what may pass by itself when it is met a second time in a row."""
        return not self.transient or self.count > 1


@dataclass
class Failures:
    """The failures of every resource; those of one are as many as its children and nodes at most."""

    clock: Clock
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=30.0, jitter=0.3))
    chance: Callable[[], float] = random.random
    _found: dict[OwnerKey, dict[Operation, Failure]] = field(default_factory=dict)

    def add(
        self, owner: OwnerKey, operation: Operation, error: ReconcileError, *, transient: bool = False,
        about: str = "",
        rest: float | None = None, longest: float = math.inf,
    ) -> None:  # fmt: skip
        """It failed; it rests for a while, by growing pauses up to `longest`, unless `rest` says how long."""
        own = self._found.setdefault(owner, {})
        before = own.get(operation)
        count = before.count + 1 if before and before.about == about else 1
        pause = min(longest, self.backoff.delay(count - 1, self.chance())) if rest is None else rest
        own[operation] = Failure(
            error=error, transient=transient, about=about, count=count, due=self.clock() + pause
        )  # fmt: skip
        if before is None or before.error != error:
            log.warning(
                "failed", owner="/".join(owner), operation=operation[1], reason=error.message, transient=transient
            )

    def resolve(self, owner: OwnerKey, operation: Operation) -> None:
        """It went well, or is no longer asked for."""
        own = self._found.get(owner, {})
        own.pop(operation, None)
        if not own:
            self._found.pop(owner, None)

    def retain(self, owner: OwnerKey, group: str, kept: Container[str]) -> None:
        """Forget what is no longer asked for in a group."""
        for operation in [
            operation
            for operation in self._found.get(owner, {})
            if operation[0] == group and operation[1] not in kept
        ]:
            self.resolve(owner, operation)

    def failed(self, owner: OwnerKey, operation: Operation) -> bool:
        """Whether its last try failed."""
        return operation in self._found.get(owner, {})

    def backs_off(self, owner: OwnerKey, operation: Operation, about: str = "") -> bool:
        """Whether it is too early for another try of the same."""
        found = self._found.get(owner, {}).get(operation)
        return found is not None and found.about == about and self.clock() < found.due

    def backing_off(self, owner: OwnerKey, group: str) -> frozenset[str]:
        """Everything of a group that rests."""
        return frozenset(
            operation[1]
            for operation, found in self._found.get(owner, {}).items()
            if operation[0] == group and self.clock() < found.due
        )

    def errors(self, owner: OwnerKey) -> list[ReconcileError]:
        """What people are told."""
        return [found.error for found in self._found.get(owner, {}).values() if found.reported]

    def retry_after(self, owner: OwnerKey) -> float | None:
        """Seconds until the next try."""
        dues = [found.due for found in self._found.get(owner, {}).values()]
        return max(LEAST_SECONDS, min(dues) - self.clock()) if dues else None

    def forget(self, owner: OwnerKey) -> None:
        """Drop what is remembered of a resource that is gone."""
        self._found.pop(owner, None)

    def owners(self) -> frozenset[OwnerKey]:
        """Resources of which something failed."""
        return frozenset(self._found)

    @contextmanager
    def guarded(self, owner: OwnerKey, operation: Operation) -> Iterator[None]:
        """What the API server refuses inside is noted, and what comes after the block goes on."""
        try:
            yield
        except ApiError as error:
            self.add(owner, operation, explain(operation[1], error), transient=error.transient)
        else:
            self.resolve(owner, operation)


def explain(operation: str, error: ApiError) -> ReconcileError:
    """A refusal in words, with who can lift it. `what` was asked for."""
    if error.status == 403 and "exceeded quota" in error.message:
        return ReconcileError(
            "QuotaExceeded", f"{operation}: {error.message}; raise the quota or ask for less", stalls=False
        )
    if "is being terminated" in error.message or "being terminated" in error.reason:
        return ReconcileError("NamespaceTerminating", f"{operation}: the namespace is being deleted", stalls=False)
    if error.status in (401, 403):
        return ReconcileError(
            "Forbidden",
            f"{operation}: {error.message}; the operator's ClusterRole lacks this: apply manifests/ again",
            stalls=False,
        )  # fmt: skip
    if error.status == 404:
        return ReconcileError(
            "KindMissing", f"{operation}: the API server does not know this kind or namespace", stalls=False
        )
    if error.status == 409:
        return ReconcileError("Conflict", f"{operation}: {error.message}", stalls=False)
    if error.transient:
        return ReconcileError("RequestFailed", f"{operation}: {error.message}; it is tried again", stalls=False)
    return ReconcileError("Rejected", f"{operation}: {error.message}")
