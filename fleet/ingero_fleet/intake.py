"""Handles a push: its reports go to the score map, and the verdict cache's answer goes back."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ingero_fleet.collectives import gpu_states
from ingero_fleet.otlp_parts import as_protobuf
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.taints import records as taints
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit import hang_records
from ingero_kit.clock import Clock
from ingero_kit.health_report import MalformedPayload, format_reasons
from ingero_kit.otlp_decode import ReportDecoder
from ingero_kit.otlp_limits import RequestTooExpensive, check_density
from ingero_kit.otlp_receiver import ACCEPTED, Answer, Push, Status
from ingero_kit.otlp_signal import Signal

Export = Callable[[Push], None]
"""Passes an accepted push to the exporters of its pipeline; never blocks."""

Observe = Callable[[Push, float], None]
"""Takes unchanged pushes with more than health reports: collectives, taints of nodes, and jobs that hang."""

TOO_MUCH: Final = "a request asks for more work than one may"
"""Reason under which whole requests are refused, among the reasons for points."""

MAX_CONVERTED_VALUES: Final = 20_000
"""Most values of a request in JSON that is exported: each costs as much as ten in protobuf."""

_METRICS: Final = Signal.METRICS


class Intake:
    """The handler of the OTLP receivers, called on the event loop."""

    def __init__(
        self,
        table: ScoreTable,
        clock: Clock,
        export: Export | None = None,
        observe: Observe | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        """`wall_clock` returns the system's time, with which senders' times are compared."""
        self.verdict_cache = VerdictCache()
        self.accepted_reports = 0
        self.pushes: Counter[Signal] = Counter()
        self.rejected: Counter[str] = Counter()
        self.malformed = 0
        self._table = table
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self._export = export
        self._observe = observe
        self._decoder = ReportDecoder()

    def __call__(self, push: Push) -> Answer:
        """Decide about one push."""
        self.pushes[push.signal] += 1
        try:
            if push.encoding == "json" and (self._export or push.signal is not _METRICS):
                check_density(push.body, "json", MAX_CONVERTED_VALUES)
            if push.signal is not _METRICS:
                return self._unread(push)
            return self._metrics(push)
        except MalformedPayload as error:
            self.malformed += 1
            if isinstance(error, RequestTooExpensive):
                self._count({TOO_MUCH: 1})
            return Answer(status=Status.INVALID, message=str(error))

    def _unread(self, push: Push) -> Answer:
        """Export a push that Fleet does not read, without malformed records; raises `MalformedPayload`."""
        check_density(push.body, push.encoding)
        try:
            found = as_protobuf(push)
        except ValueError as error:
            raise MalformedPayload(str(error)) from None
        self._count(found.reasons)
        push = replace(push, body=found.body, encoding="protobuf")
        wanted = taints.NEEDLE in push.body or hang_records.NEEDLE in push.body
        if self._observe and push.signal is Signal.LOGS and wanted:
            self._observe(push, self._clock())
        if self._export:
            self._export(push)
        return Answer(rejected=found.records, message=format_reasons(found.reasons)) if found.reasons else ACCEPTED

    def _metrics(self, push: Push) -> Answer:
        """Take the reports of a push; raises `MalformedPayload`."""
        now = self._clock()
        decoded = self._decoder.decode(push.body, push.encoding, self._wall_clock(), push.cluster)
        if decoded.repaired is not None:
            push = replace(push, body=decoded.repaired)
        if self._observe and (decoded.collective_points or (decoded.other_points and gpu_states.NEEDLE in push.body)):
            self._observe(push, now)
        answer = ACCEPTED
        table = self._table
        for report in decoded.reports:
            row = table.observe(report, now)
            if isinstance(row, str):
                decoded.reject(row)
                continue
            self.accepted_reports += 1
            answer = self.verdict_cache.answer(report, table.names[row], table.first_seen(row))
        passable = decoded.reports or decoded.other_points or decoded.collective_points
        if decoded.sender and not decoded.reports:
            answer = self.verdict_cache.answer_tracer(decoded.sender)
        if self._export and (passable or not decoded.rejected):
            self._export(push)
        if decoded.reasons:
            self._count(decoded.reasons)
            return Answer(
                rejected=decoded.rejected,
                message=decoded.message,
                http_headers=answer.http_headers,
                metadata=answer.metadata,
            )
        return answer

    def _count(self, reasons: dict[str, int]) -> None:
        for reason, count in reasons.items():
            kind = reason if len(self.rejected) < 64 or reason in self.rejected else "other"
            self.rejected[kind] += count
