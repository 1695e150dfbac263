"""A push comes in; it is answered when it is written. Called from the event loop."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from ingero_echo.auth import Identity, Keyring, Scope
from ingero_echo.ingest import decode
from ingero_echo.records import Malformed
from ingero_echo.retention import Calendar
from ingero_echo.writer import RETRY_SECONDS, Full, NotWritten, Writer
from ingero_kit.otlp_server import ACCEPTED, Answer, Guardian, Push, Status


class Doorkeeper(Guardian):
    """Lets pushes pass whose token may ingest."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__()
        self._keyring = keyring
        self.local_only = keyring.open

    def admit(self, authorization: bytes | str | None) -> bool:
        """Whether a request with this Authorization header may go on."""
        identity = self._keyring.find(authorization)
        if identity is not None and identity.may(Scope.INGEST):
            return True
        self.refused += 1
        return False


class Intake:
    """The handler of the OTLP receivers."""

    def __init__(self, keyring: Keyring, writer: Writer, oldest_seconds: float, dates: Calendar) -> None:
        self.pushes: Counter[str] = Counter()
        self.malformed = 0
        self.rejected = 0
        self._keyring = keyring
        self._writer = writer
        self._age = int(oldest_seconds * 1e9)
        self._dates = dates

    def __call__(self, push: Push) -> Answer | Awaitable[Answer]:
        """Decide about one push."""
        self.pushes[push.signal.name] += 1
        identity = self._keyring.find(push.authorization)
        if identity is None:
            return Answer(status=Status.UNAUTHENTICATED, message="a bearer token is required")
        size = len(push.body)
        now = time.time_ns()
        oldest = self._dates.now(now, time.monotonic_ns()) - self._age
        try:
            self._writer.check_room(size)
            batch = decode(push.signal, push.encoding, push.body, push.cluster, now, _allowed(identity), oldest)
            if not batch.identities:
                self.rejected += batch.rejected
                return Answer(rejected=batch.rejected, message=batch.message) if batch.rejected else ACCEPTED
            done = self._writer.put(batch, size)
        except Malformed as error:
            self.malformed += 1
            return Answer(status=Status.INVALID, message=str(error))
        except Full:
            return Answer(
                status=Status.BUSY, message="the queue is full: send again later", retry_seconds=RETRY_SECONDS
            )
        self.rejected += batch.rejected
        return self._later(done, batch.rejected, batch.message)

    async def _later(self, done: Future[int], rejected: int, message: str) -> Answer:
        try:
            await asyncio.wrap_future(done)
        except NotWritten as error:
            return Answer(
                status=Status.UNAVAILABLE, message=f"not written, send again: {error}", retry_seconds=RETRY_SECONDS
            )
        return Answer(rejected=rejected, message=message) if rejected else ACCEPTED


def _allowed(identity: Identity) -> Callable[[str], bool]:
    return identity.sees
