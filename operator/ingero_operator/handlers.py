"""What kopf tells us, and nothing else: events in, keys out. No handler here writes, returns, or keeps state.

kopf's own state machine (create, update, timers, indices) would write annotations and finalizers into every object;
watching alone writes nothing.
"""

from collections.abc import Callable
from typing import Any

import kopf

from ingero_operator.api_client import login
from ingero_operator.kinds import CHILDREN, ECHO_STORE, FLEET_CLUSTER, NODE, OURS, STORAGE_CLASS, Kind

OnEvent = Callable[[str, str | None, dict[str, Any]], None]

WATCHED = (FLEET_CLUSTER, ECHO_STORE, NODE, STORAGE_CLASS, *CHILDREN)


def registry(on_event: OnEvent) -> kopf.OperatorRegistry:
    """Handlers that hand every event to `take`."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found, id="login")(login)
    for kind in WATCHED:
        _watch(found, kind, on_event)
    return found


def _watch(into: kopf.OperatorRegistry, kind: Kind, on_event: OnEvent) -> None:
    async def seen(event: Any, **_: Any) -> None:
        """Hand the event on."""
        on_event(kind.name, event["type"], event["object"])

    kopf.on.event(
        group=kind.group, version=kind.version, plural=kind.plural, registry=into, id=f"seen-{kind.plural}"
    )(seen)


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf copies every object of every event twice to see what has changed; nobody here asks."""

    def build(self, **_: Any) -> Any:
        """The essence of an object: nothing."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """The essence as it was last stored: never."""
        return None

    def store(self, **_: Any) -> None:
        """Leave the object alone."""


def settings() -> kopf.OperatorSettings:
    """kopf as an informer: no peering, no scanning, no posting, short waits, children by our label only."""
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.scanning.disabled = True
    found.posting.enabled = False
    found.watching.server_timeout = 300
    found.watching.connect_timeout = 10
    found.watching.chunk_size = 500
    found.networking.request_timeout = 30
    found.networking.error_backoffs = [1, 2, 4]
    found.process.ultimate_exiting_timeout = 30
    found.persistence.finalizer = "operator.ingero.io/finalizer"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.ingero.io", v1=False)
    found.persistence.diffbase_storage = _NoDiffs()
    for kind in CHILDREN:
        found.watching.label_selectors[kopf_selector(kind)] = OURS
    return found


def kopf_selector(kind: Kind) -> tuple[str, str, str]:
    """How kopf's mapping of selectors names a kind."""
    return kind.group, kind.version, kind.plural
