"""Types of identifiers that are all text or all numbers, so that a cluster is not taken for a node."""

from typing import NewType

ClusterId = NewType("ClusterId", str)
"""A cluster, as in `ingero.cluster.id`."""

NodeId = NewType("NodeId", str)
"""A node of a cluster, as in `ingero.node.id`."""

Rank = NewType("Rank", int)
"""A rank of a whole job, which is not its place in the list of a communicator's members."""

NodeKey = tuple[ClusterId, NodeId]
"""A node among all clusters."""


def node_key(cluster: str, node: str) -> NodeKey:
    """The key of a node whose names come from outside, such as a push or a file."""
    return cluster, node  # type: ignore[return-value]  # calling the types would cost a push half a microsecond
