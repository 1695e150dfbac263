"""The watched kinds as kopf handlers.

Each handler passes its event to `Informer`, which puts the keys of the concerned resources into the work queue;
`FleetClusters.reconcile` and `EchoStores.reconcile` do the work.
kopf's stateful handlers (create, update, timers, daemons) would write annotations and finalizers into every object;
docs/decisions/2-kopf.md has the figures. Nodes are watched by `node_watch`.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import kopf

from ingero_operator.credentials import login
from ingero_operator.informer import Informer
from ingero_operator.kinds import CHILDREN, ECHO_STORE, FLEET_CLUSTER, OURS, STORAGE_CLASS, ResourceKind


def registry(informer: Informer) -> kopf.OperatorRegistry:
    """The handlers of the operator."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    def log_in(**_: Any) -> kopf.ConnectionInfo | None:
        """Credentials, at the start and whenever the API server no longer accepts them."""
        return login()

    @kopf.on.startup(registry=handlers)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        """Configure kopf as an informer: it lists and watches, and writes nothing."""
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 10
        settings.watching.chunk_size = 500
        settings.networking.request_timeout = 30
        settings.networking.error_backoffs = Pauses()
        settings.process.ultimate_exiting_timeout = 30
        settings.persistence.finalizer = "operator.ingero.io/finalizer"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.ingero.io", v1=False)
        settings.persistence.diffbase_storage = _NoDiffs()
        for kind in CHILDREN:
            settings.watching.label_selectors[_resource(kind)] = OURS

    for kind in (FLEET_CLUSTER, ECHO_STORE, STORAGE_CLASS, *CHILDREN):

        @kopf.on.event(*_resource(kind), registry=handlers, id=kind.plural, param=kind.name)
        async def changed(event: Any, param: Any = "", **_: Any) -> None:
            """`Informer` queues the resources that are concerned."""
            informer.on_event(param, event["type"], event["object"])

    return handlers


class Pauses:
    """Seconds between the tries of one request of kopf, without end.

    An API server that has just started answers 503 for some seconds. kopf ends a watch, and the operator with it,
    when the last of a limited number of tries falls into them. What is refused for good is found by the lists of the
    operator itself, which do not go through kopf.
    """

    def __iter__(self) -> Iterator[int]:
        """1, 2, 4, 4, ..."""
        return chain((1, 2), repeat(4))


def _resource(kind: ResourceKind) -> tuple[str, str, str]:
    """A kind as kopf selects it."""
    return kind.group, kind.version, kind.plural


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf copies every object of every event twice to compute differences, which no handler here uses."""

    def build(self, **_: Any) -> Any:
        """The essence of an object: nothing."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """The essence as it was last stored: none."""
        return None

    def store(self, **_: Any) -> None:
        """Leave the object alone."""
