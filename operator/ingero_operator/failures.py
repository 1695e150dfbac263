"""Failed operations of a resource: each has its own back-off, and an error that users see.

A failure is a value here and never ends a reconcile: the rest of the resource's work is still done.
"""

import math
import random
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.api_client import ApiError
from ingero_operator.cache import OwnerKey
from ingero_operator.errors import ReconcileError

log = get(__name__)

LEAST_SECONDS: Final = 0.5
"""Least time to the next reconcile, as a due retry may depend on something else."""


class OperationKind(StrEnum):
    """Kinds of operations that fail independently of one another."""

    READ = "read"
    CHILDREN = "children"
    CHILD = "child"
    TAINT = "taint"
    RELEASE = "release"
    RELEASE_NOTE = "release note"
    CONDITION = "condition"
    STATUS = "status"


class Operation(NamedTuple):
    """One operation for a resource: what is done, and to which target."""

    kind: OperationKind
    target: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An operation whose last attempts, one or more, failed."""

    error: ReconcileError
    transient: bool
    attempt: str
    """Digest of the content that was tried; different content may be tried at once."""
    count: int
    due: float

    @property
    def reported(self) -> bool:
        """Whether users see the failure: a transient one only after two in a row."""
        return not self.transient or self.count > 1


REFUSED: Final = Backoff(first=5.0, longest=300.0, jitter=0.3)
"""Of what the API server refuses: a user has to change a right or a policy, or the server is only starting."""


@dataclass
class Failures:
    """The failures of every resource: for each at most as many as it has children and nodes."""

    clock: Clock
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=30.0, jitter=0.3))
    chance: Callable[[], float] = random.random
    _found: dict[OwnerKey, dict[Operation, Failure]] = field(default_factory=dict)

    def add(
        self, owner: OwnerKey, operation: Operation, error: ReconcileError, *, transient: bool = False,
        attempt: str = "", backoff: Backoff | None = None, longest: float = math.inf,
    ) -> None:  # fmt: skip
        """Record a failure. The next attempt follows after a back-off, by default the usual one, up to `longest`."""
        own = self._found.setdefault(owner, {})
        before = own.get(operation)
        count = before.count + 1 if before and before.attempt == attempt else 1
        pause = min(longest, (backoff or self.backoff).delay(count - 1, self.chance()))
        own[operation] = Failure(
            error=error, transient=transient, attempt=attempt, count=count, due=self.clock() + pause
        )
        if before is None or before.error != error:
            log.warning(
                "operation_failed", owner="/".join(owner), operation=operation.kind, target=operation.target,
                reason=error.message, transient=transient,
            )  # fmt: skip

    def resolve(self, owner: OwnerKey, operation: Operation) -> None:
        """Clear the failure of an operation that succeeded or is no longer needed."""
        own = self._found.get(owner, {})
        own.pop(operation, None)
        if not own:
            self._found.pop(owner, None)

    def retain(self, owner: OwnerKey, kind: OperationKind, targets: Container[str]) -> None:
        """Forget the failures of a kind whose target is no longer needed."""
        for operation in list(self._found.get(owner, {})):
            if operation.kind is kind and operation.target not in targets:
                self.resolve(owner, operation)

    def failed(self, owner: OwnerKey, operation: Operation) -> bool:
        """Whether the last attempt of an operation failed."""
        return operation in self._found.get(owner, {})

    def backs_off(self, owner: OwnerKey, operation: Operation, attempt: str = "") -> bool:
        """Whether it is too early to retry the same content."""
        found = self._found.get(owner, {}).get(operation)
        return found is not None and found.attempt == attempt and self.clock() < found.due

    def backing_off(self, owner: OwnerKey, kind: OperationKind) -> frozenset[str]:
        """Targets of a kind that wait for their next attempt."""
        own = {operation: found for operation, found in self._found.get(owner, {}).items() if operation.kind is kind}
        return frozenset(operation.target for operation, found in own.items() if self.clock() < found.due)

    def errors(self, owner: OwnerKey) -> list[ReconcileError]:
        """The errors that users are shown."""
        return [found.error for found in self._found.get(owner, {}).values() if found.reported]

    def retry_after(self, owner: OwnerKey) -> float | None:
        """Seconds until the next attempt; `None` when nothing failed."""
        dues = [found.due for found in self._found.get(owner, {}).values()]
        return max(LEAST_SECONDS, min(dues) - self.clock()) if dues else None

    def forget(self, owner: OwnerKey) -> None:
        """Drop the failures of a deleted resource."""
        self._found.pop(owner, None)

    def owners(self) -> frozenset[OwnerKey]:
        """Resources with a failure."""
        return frozenset(self._found)

    @contextmanager
    def guarded(self, owner: OwnerKey, operation: Operation) -> Iterator[None]:
        """Record an `ApiError` of the block as a failure and continue after it; otherwise clear the failure."""
        try:
            yield
        except ApiError as error:
            self.add(owner, operation, explain(operation.target, error), transient=error.transient)
        else:
            self.resolve(owner, operation)


_LOSS: Final = "or delete the claim and its pod, which loses what is on the volume"
_CLAIM_REFUSALS: Final = (
    (
        "must support resize", "ClassCannotExpand",
        "its storage class does not allow expansion; request the former size,",
    ),
    (
        "field can not be less than", "VolumeCannotShrink",
        "a volume cannot become smaller; request the former size,",
    ),
    (
        "is immutable after creation except resources.requests", "ClaimCannotChange",
        "nothing but the size of a claim can be changed; undo the change,",
    ),
)  # fmt: skip
"""What the API server says when it refuses a change of a claim, and what that means."""


def explain(target: str, error: ApiError) -> ReconcileError:
    """What a refusal of the API server means, and how to fix it. `target` is what the request was about."""
    if error.status == 403 and "exceeded quota" in error.message:
        return ReconcileError(
            "QuotaExceeded", f"{target}: {error.message}; raise the quota or ask for less", stalls=False
        )
    if "is being terminated" in error.message or "being terminated" in error.reason:
        return ReconcileError("NamespaceTerminating", f"{target}: the namespace is being deleted", stalls=False)
    for said, reason, cure in _CLAIM_REFUSALS:
        if said in error.message:
            return ReconcileError(reason, f"{target}: {cure} {_LOSS}")
    if error.status in (401, 403):
        message = f"{target}: {error.message}; the operator's ClusterRole lacks this: apply manifests/ again"
        return ReconcileError("Forbidden", message, stalls=False)
    if error.status == 404:
        message = f"{target}: the API server does not know this kind or namespace"
        return ReconcileError("KindMissing", message, stalls=False)
    if error.status == 409:
        return ReconcileError("Conflict", f"{target}: {error.message}", stalls=False)
    if error.transient:
        return ReconcileError("RequestFailed", f"{target}: {error.message}; it is tried again", stalls=False)
    return ReconcileError("Rejected", f"{target}: {error.message}")
