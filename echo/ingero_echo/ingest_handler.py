"""Handles pushes: each is decoded, written, and answered when it is durable. Called from the event loop.

Large pushes are decoded on a separate thread, so that they do not block the event loop; senders take turns there.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from ingero_echo.auth import Callers, Identity, RateLimit, Scope, caller_key
from ingero_echo.fair_queue import FairQueue
from ingero_echo.ingest import decode_request
from ingero_echo.ingest_audit import IngestAudit
from ingero_echo.ingest_batch import Batch
from ingero_echo.records import MalformedRequest
from ingero_echo.retention import RetentionClock
from ingero_echo.writer import RETRY_SECONDS, QueueFull, WriteFailed, Writer
from ingero_kit.otlp_receiver import ACCEPTED, Answer, Authenticator, Push, Status
from ingero_kit.tokens import token_refusal

MAX_INLINE_BYTES: Final = 8 << 10
"""Longest body, bytes, that is read on the event loop: a tenth of a second at most, where every record is empty."""


class IngestAuthenticator(Authenticator):
    """Accepts pushes whose token has the scope `ingest`."""

    def __init__(self, tokens: Callers, audit: IngestAudit) -> None:
        super().__init__()
        self._tokens, self._audit = tokens, audit
        self.local_only = tokens.open

    def admit(self, authorization: bytes | str | None) -> bool:
        """Whether a request with this Authorization header may go on."""
        identity = self._tokens.find(authorization)
        if identity is not None and identity.may(Scope.INGEST):
            return True
        self.refused += 1
        self._audit.refuse(authorization, identity)
        return False


class IngestHandler:
    """The handler of the OTLP receivers."""

    def __init__(
        self,
        tokens: Callers,
        writer: Writer,
        oldest_seconds: float,
        clock: RetentionClock,
        audit: IngestAudit,
        rate: RateLimit | None = None,
    ) -> None:
        self.pushes: Counter[str] = Counter()
        self.malformed = 0
        self.rejected = 0
        self.rate_limited = 0
        self._audit, self._rate = audit, rate
        self._tokens = tokens
        self._writer = writer
        self._age = int(oldest_seconds * 1e9)
        self._clock = clock
        self._reader = ThreadPoolExecutor(1, "reader")
        self._pending: FairQueue[tuple[Callable[[], Batch], Future[Batch]]] = FairQueue()
        self._reading: Counter[str] = Counter()
        """Encoded size of the pushes that are being decoded or wait for it, by sender."""

    def close(self) -> None:
        """Accept no more pushes; a push that is being decoded is completed."""
        self._reader.shutdown(cancel_futures=True)

    def __call__(self, push: Push) -> Answer | Awaitable[Answer]:
        """Handle one push."""
        self.pushes[push.signal.name] += 1
        identity = self._tokens.find(push.authorization)
        if identity is None:
            return Answer(status=Status.UNAUTHENTICATED, message=token_refusal(push.authorization))
        size, sender = len(push.body), caller_key(identity)
        wait = self._rate.wait(sender) if self._rate and not self._tokens.open else 0.0
        if wait > 0:
            self.rate_limited += 1
            self._audit.count(identity, requests=1, bytes=size, rate_limited=1)
            return Answer(
                status=Status.BUSY, message="this token pushes too often: send again later",
                retry_seconds=max(1.0, wait),
            )  # fmt: skip
        self._audit.count(identity, requests=1, bytes=size)
        now = time.time_ns()
        oldest = self._clock.now(now, time.monotonic_ns()) - self._age
        read = partial(
            decode_request, push.signal, push.encoding, push.body, push.cluster, now, identity.sees, oldest
        )
        try:
            self._writer.check_room(size, sender, self._reading)
            if size > MAX_INLINE_BYTES:
                return self._decode_on_thread(read, size, identity)
            return self._put(read(), size, identity)
        except (MalformedRequest, QueueFull) as error:
            return self._refused(error, identity)

    def _refused(self, error: MalformedRequest | QueueFull, identity: Identity) -> Answer:
        if isinstance(error, QueueFull):
            return Answer(
                status=Status.BUSY, message="the queue is full: send again later", retry_seconds=RETRY_SECONDS
            )
        self.malformed += 1
        self._audit.count(identity, malformed=1)
        return Answer(status=Status.INVALID, message=str(error))

    async def _decode_on_thread(self, read: Callable[[], Batch], size: int, identity: Identity) -> Answer:
        """Decode a large push on the thread, which serves the senders in turns."""
        sender = caller_key(identity)
        done: Future[Batch] = Future()
        self._reading[sender] += size
        try:
            self._pending.put(sender, (read, done))
            self._reader.submit(self._read_next)
            batch = await asyncio.wrap_future(done)
        except MalformedRequest as error:
            return self._refused(error, identity)
        finally:
            self._reading[sender] -= size
            if not self._reading[sender]:
                del self._reading[sender]
        try:
            answer = self._put(batch, size, identity)
        except QueueFull as error:
            return self._refused(error, identity)
        return answer if isinstance(answer, Answer) else await answer

    def _read_next(self) -> None:
        """On the thread: decode the push whose turn it is."""
        read, done = self._pending.pop()
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(read())
        except BaseException as error:
            done.set_exception(error)

    def _put(self, batch: Batch, size: int, identity: Identity) -> Answer | Awaitable[Answer]:
        """Pass a decoded push to the writer. Raises `QueueFull`."""
        answer = Answer(rejected=batch.rejected, message=batch.message) if batch.reasons else ACCEPTED
        done = self._writer.put(batch, size, caller_key(identity)) if batch.identities else None
        self.rejected += batch.rejected
        self._audit.count(identity, batch.clusters, events=len(batch.identities), rejected=batch.rejected)
        return self._when_written(done, answer) if done else answer

    async def _when_written(self, done: Future[int], answer: Answer) -> Answer:
        try:
            await asyncio.wrap_future(done)
        except WriteFailed as error:
            return Answer(
                status=Status.UNAVAILABLE, message=f"not written, send again: {error}", retry_seconds=RETRY_SECONDS
            )
        return answer
