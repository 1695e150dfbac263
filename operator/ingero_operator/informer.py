"""The observed cluster: the cache, the nodes, and which resources to reconcile when something changes."""

from collections.abc import Callable, Mapping

from ingero_operator.cache import Cache, ObjectKey, OwnerKey, key_of
from ingero_operator.kinds import Manifest
from ingero_operator.scopes import FleetScopes
from ingero_operator.taints.nodes import NodeView, node_view

RESOURCES = ("FleetCluster", "EchoStore")


class Informer:
    """Processes watch events and queues the resources that they concern."""

    def __init__(self, dirty: Callable[[OwnerKey], None]) -> None:
        self.cache = Cache()
        self.scopes = FleetScopes(self.cache)
        self.nodes: dict[str, NodeView] = {}
        self.interest: dict[OwnerKey, frozenset[str]] = {}
        self.events = 0
        self._dirty = dirty

    def on_event(self, kind: str, change: str | None, body: Manifest) -> None:
        """One watch event; `change` is ADDED, MODIFIED, DELETED, or nothing for a listing."""
        self.events += 1
        gone = change == "DELETED"
        if kind == "Node":
            self._node(body, gone)
        elif kind == "StorageClass":
            if change is not None:
                self.requeue("EchoStore")
        else:
            before = self.cache.owner(key_of(kind, body))
            news = self.cache.drop(kind, body) if gone else self.cache.put(kind, body)
            if news:
                self._concerned(kind, body, before)

    def _concerned(self, kind: str, body: Manifest, before: OwnerKey | None) -> None:
        key = key_of(kind, body)
        if kind in RESOURCES:
            self._dirty(key)
            if kind == "EchoStore":
                for name in list(self.cache.keys("FleetCluster")):
                    if name[1] == key[1]:
                        self._dirty(name)
            return
        for owner in {before, self.cache.owner(key)}:
            if owner:  # also the previous owner, which must restore the child that it lost
                self._dirty(owner)

    def _node(self, body: Manifest, gone: bool) -> None:
        name = body["metadata"]["name"]
        before = self.nodes.get(name)
        if gone:
            self.nodes.pop(name, None)
            changed = before is not None
        else:
            after = node_view(body)
            if before is not None and before.uid == after.uid and _older(after.version, before.version):
                return
            self.nodes[name] = after
            changed = before != after
        if changed:
            for key, names in list(self.interest.items()):
                if name in names:
                    self._dirty(key)

    def watched(self, selector: Mapping[str, str]) -> dict[str, NodeView]:
        """Nodes that carry all of these labels."""
        wanted = selector.items()
        return {name: node for name, node in self.nodes.items() if wanted <= node.labels.items()}

    def gone(self, kind: str, key: ObjectKey) -> None:
        """Remove what a list no longer contains."""
        if kind == "Node":
            self._node({"metadata": {"name": key[2]}}, True)
            return
        owner = self.cache.owner(key)
        if self.cache.drop_key(key):
            self._dirty(owner or key)

    def requeue(self, kind: str) -> None:
        """Queue every resource of a kind for a reconcile."""
        for key in self.cache.keys(kind):
            self._dirty(key)


def _older(one: str, other: str) -> bool:
    return one.isdigit() and other.isdigit() and int(one) < int(other)
