"""Leader election by a Lease. Its age is measured on the local monotonic clock from the last change seen."""

import asyncio
import math
import random
import time
from datetime import UTC, datetime
from typing import Final

from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.kinds import LEASE, Manifest

log = get(__name__)


NAME: Final = "ingero-operator"
"""Name of the Lease."""


class LeaderElector:
    """Acquires the Lease, renews it, and reports the time of the last renewal.

    `duration`: seconds after which a Lease that nobody renewed may be taken. Its holder gives up after two thirds.
    """

    def __init__(self, api: ApiClient, namespace: str, identity: str, duration: float = 15.0) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._renew_deadline = duration * 2 / 3
        self._retry = duration * 2 / 15
        self._seen: tuple[str, float] = ("", 0.0)
        self._heard = -math.inf
        self._failure = ""
        self.renewed = 0.0

    def leads(self, within: float) -> bool:
        """Whether this replica renewed the Lease within so many seconds."""
        return self.renewed > 0 and time.monotonic() - self.renewed < within

    def blocked_reason(self) -> str:
        """Why this replica could not take over if the leader stopped now; empty when it could.

        An API server that is away for less than the duration of a Lease is no reason.
        """
        recent = time.monotonic() - self._heard < self._duration
        return "" if recent else self._failure or "has not tried to take the Lease yet"

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        waiting = False
        while not await self._try():
            if not waiting and not self._failure:
                log.info("standing_by", lease=NAME)
                waiting = True
            await asyncio.sleep(self._retry * random.uniform(0.8, 1.2))
        log.info("leading", identity=self._identity)

    async def keep(self) -> None:
        """Renew; returns when the Lease is lost or could not be renewed in time."""
        while True:
            await asyncio.sleep(self._retry)
            if not await self._try() and not self.leads(self._renew_deadline):
                log.error("leadership_lost", identity=self._identity)
                return

    async def release(self) -> None:
        """Release the Lease so that another replica does not have to wait."""
        try:
            lease = await self._api.get(LEASE, self._namespace, NAME)
            if lease and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(LEASE, self._namespace, lease, self._retry)
        except ApiError as error:
            log.info("lease_not_released", reason=error.message)
        self.renewed = 0.0

    async def _try(self) -> bool:
        """Acquire or renew the Lease; every error counts as a failed attempt."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._renew_deadline):
                lease = await self._api.get(LEASE, self._namespace, NAME)
            if lease is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": NAME, "namespace": self._namespace},
                    "spec": self._spec({}),
                }
                await self._api.create(LEASE, self._namespace, body)
            else:
                spec = lease.get("spec") or {}
                holder = spec.get("holderIdentity") or ""
                if holder != self._identity and holder and not self._expired(lease):
                    self._answered()
                    return False
                lease["spec"] = self._spec(spec)
                await self._api.replace(LEASE, self._namespace, lease, self._renew_deadline)
        except (ApiError, TimeoutError) as error:
            return self._failed(error)
        self._answered()
        self.renewed = started
        return True

    def _answered(self) -> None:
        self._heard, self._failure = time.monotonic(), ""

    def _failed(self, error: ApiError | TimeoutError) -> bool:
        """Record why an attempt failed; logged once while it is the same. A lost race for the Lease is no failure."""
        if isinstance(error, ApiError) and error.status == 409:
            self._answered()
            return False
        message = f"Lease {self._namespace}/{NAME}: {error or 'the API server did not answer'}"
        if message != self._failure:
            log.warning("lease_try_failed", reason=message)
        self._failure = message
        return False

    def _expired(self, lease: Manifest) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            self._seen = (version, time.monotonic())
        duration = float(lease["spec"].get("leaseDurationSeconds") or self._duration)
        return time.monotonic() - self._seen[1] > duration

    def _spec(self, before: Manifest) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        same = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if same else now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if same else 1),
        }
