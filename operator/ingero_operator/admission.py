"""Checks that an admission policy limits what this account may write to nodes.

Roles cannot restrict fields, and an overlay, another account or a policy that was never applied would leave only the
role. So the operator asks the API server: it sends a dry run of a write that the policy must refuse.
"""

import math
from dataclasses import dataclass
from typing import Final

from ingero_contract.kubernetes import GROUP
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.kinds import NODE

log = get(__name__)

HOLDS_SECONDS: Final = 600.0
MISSING_SECONDS: Final = 5.0
FORBIDDEN: Final = {"metadata": {"annotations": {f"{GROUP}/may-not-be-written": "a dry run of the operator"}}}
"""A write that the policy always refuses, and that would do no harm."""


@dataclass
class NodePolicyProbe:
    """Performs the check and caches its result."""

    api: ApiClient
    clock: Clock
    subresource: str | None = None
    needed: bool = True
    """False: the operator was started with `--no-node-policy`."""
    missing: str = ""
    """Why the policy is not in force, after a dry run that was admitted; empty otherwise."""
    _asked: float = -math.inf

    async def in_force(self, node: str) -> bool:
        """Whether a node may be tainted. The result is cached for a while; without a response it is no."""
        rest = MISSING_SECONDS if self.missing else HOLDS_SECONDS
        if not self.needed or self.clock() - self._asked < rest:
            return not self.missing
        try:
            await self.api.merge(NODE, None, node, FORBIDDEN, self.subresource, dry_run=True)
        except ApiError as error:
            if error.status != 403:
                log.warning("node_policy_check_failed", node=node, reason=error.message)
                return False
            self.missing = ""
        else:
            self.missing = (
                "no admission policy bounds what the operator's account may write to nodes (a dry run that it must "
                "refuse was let through): apply manifests/base again, or start the operator with --no-node-policy"
            )
            log.warning("node_policy_missing", node=node)
        self._asked = self.clock()
        return not self.missing
