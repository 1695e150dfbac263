"""Whether an admission policy bounds what this account may write to nodes.

An overlay, another account or a policy that was never applied leaves the operator with a role that sees no fields. So
the API server is asked itself: a dry run of a write that the policy must refuse.
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
"""What every guard refuses, and what would do no harm."""


@dataclass
class NodePolicyProbe:
    """Remembers what the API server answered."""

    api: ApiClient
    clock: Clock
    needed: bool = True
    """Off: whoever started the operator wants no guard."""
    missing: str = ""
    """Why the policy is not in force, after a dry run that was let through; empty otherwise."""
    _asked: float = -math.inf

    async def in_force(self, node: str) -> bool:
        """Whether a node may be tainted. The result is kept for a while; no answer counts as no."""
        rest = MISSING_SECONDS if self.missing else HOLDS_SECONDS
        if not self.needed or self.clock() - self._asked < rest:
            return not self.missing
        try:
            await self.api.merge(NODE, None, node, FORBIDDEN, dry_run=True)
        except ApiError as error:
            if error.status != 403:
                log.warning("node_guard_not_asked", node=node, reason=error.message)
                return False
            self.missing = ""
        else:
            self.missing = (
                "no admission policy bounds what the operator's account may write to nodes (a dry run that it must "
                "refuse was let through): apply manifests/base again, or start the operator with --no-node-guard"
            )
            log.warning("nodes_unguarded", node=node)
        self._asked = self.clock()
        return not self.missing
