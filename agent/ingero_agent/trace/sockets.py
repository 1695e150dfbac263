"""The tracer's unix sockets, served by a separate thread: events to consumers, annotations from programs."""

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from ingero_agent.event_socket import EventSocket
from ingero_agent.trace.annotations import Annotation, AnnotationSocket
from ingero_contract.events import Event


class Sockets:
    """Serves the sockets; either may be missing. Raises `OSError` when a path cannot be listened on."""

    def __init__(self, events: EventSocket | None, annotations: AnnotationSocket | None) -> None:
        self.events, self.annotations = events, annotations
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sockets", daemon=True)
        self._thread.start()
        try:
            for one in (events, annotations):
                if one:
                    self._wait(asyncio.run_coroutine_threadsafe(one.start(), self._loop))
        except OSError:
            self.close()
            raise

    def publish(self, lines: Iterable[Event]) -> None:
        """Send lines to every consumer; never waits."""
        if self.events:
            for line in lines:
                self._loop.call_soon_threadsafe(self.events.publish, line)

    def take(self) -> list[Annotation]:
        """Annotations since the previous call."""
        return self.annotations.take() if self.annotations else []

    def close(self) -> None:
        """Allow queued lines a short time to be sent, then stop."""
        for one in (self.events, self.annotations):
            if one:
                self._wait(asyncio.run_coroutine_threadsafe(one.stop(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    @staticmethod
    def _wait(begun: "Future[None]") -> None:
        begun.result(10)
