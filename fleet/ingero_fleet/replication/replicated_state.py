"""The state that every replica has at the same place of the log: the state machine, and what it knows of the log."""

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ingero_detect.nodes.column_store import SnapshotError
from ingero_fleet.receivers.messages import decode_push
from ingero_fleet.replication.log_bodies import BatchHead, Marker, decode_reports
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_fleet.state_codec import State, encode_state, hash_of, sealed
from ingero_fleet.state_machine import StateMachine, TickResult, read_state
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

log = get(__name__)

NUMBERS_KEPT: Final = 64
"""Latest message numbers of each sender that are remembered, so that a message that comes twice counts once. Lower
ones count as repeated: a sender has fewer messages on their way at a time."""

MAX_SENDERS: Final = 1024
"""Senders remembered; beyond that, the one that has been silent longest is forgotten."""

MAX_SUPERSEDED: Final = 16
"""Latest rules that are remembered as superseded."""

LONGEST_PAUSE: Final = 2.0
"""Push intervals without any message after which the log was away: every replica publishes ten times in each."""

HASH_TICKS: Final = 12
"""Ticks between two state hashes, and between two snapshots."""

NewMachine = Callable[[Callable[[Push], None]], StateMachine]
"""Builds a state machine that exports to the given function."""


@dataclass(frozen=True)
class Applied:
    """What a message led to: results of a tick, findings to export, and the head of a batch."""

    result: TickResult | None = None
    marker: Marker | None = None
    findings: list[Push] = field(default_factory=list)
    head: BatchHead | None = None
    judged_early: bool = False
    missed: bool = False
    """Whether markers before this one are missing."""


class Position(NamedTuple):
    """Where a replica is in the log: the last message and its time, the last marker, ticks, and who judges."""

    sequence: int
    now: float
    marker: int
    markers: int
    exported: int
    ticks: int
    cut_by: str
    parked: bool
    superseded: bool


class ReplicatedState:
    """One for each replica. `apply` must be called with every message of the log, in its order."""

    def __init__(self, new_machine: NewMachine, rules: str) -> None:
        """`rules` names what the results depend on besides the log: version, settings, processor."""
        self._findings: list[Push] = []
        self.machine = new_machine(self._findings.append)
        self.rules = rules
        self.sequence = 0
        """The last message applied."""
        self.now = 0.0
        """Its time."""
        self.marker = 0
        """Sequence of the last marker."""
        self.markers = 0
        """Number of the last marker that was applied."""
        self.cut_by = ""
        """Replica that cut the last tick."""
        self.exported = 0
        """Number of the last marker whose findings are known to be exported."""
        self.current_rules = ""
        """What the replica that cut the last marker judges by."""
        self.outcomes: Counter[str] = Counter()
        """Messages by outcome, since the process began."""
        self._numbers: dict[str, list[int]] = {}
        self._superseded: list[str] = []

    def position(self) -> Position:
        """A copy for a caller that does not apply messages itself."""
        return Position(
            self.sequence, self.now, self.marker, self.markers, self.exported, self.machine.ticks, self.cut_by,
            self.parked, self.superseded,
        )  # fmt: skip

    @property
    def parked(self) -> bool:
        """Whether the last marker was cut by other rules: nothing is judged until one is cut by these."""
        return self.current_rules not in ("", self.rules)

    @property
    def superseded(self) -> bool:
        """Whether replicas with other rules have taken over from those with these rules."""
        return self.rules in self._superseded

    def apply(self, message: LogMessage) -> Applied:
        """Take the step of a message. A message that cannot be read, or came before, changes nothing."""
        if not self.now:
            self.machine.cost.start(message.time)
        pause = message.time - self.now
        if self.now and pause > LONGEST_PAUSE * self.machine.config.push_interval:
            self.outcomes["pauses"] += 1
            self.machine.interrupted(pause, message.time)
        self.sequence, self.now = message.sequence, max(self.now, message.time)
        try:
            if message.kind == "marker":
                return self._apply_marker(message)
            if self._is_repeated(message.key):
                self.outcomes["repeated"] += 1
                return Applied()
            self.outcomes[message.kind] += 1
            if message.kind == "push":
                push, _ = decode_push(message.body)
                self.machine.take(push, self.now)
                return Applied()
            head, batch = decode_reports(message.body, self.now)
            self.machine.merge(batch)
            return Applied(head=head)
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            self.outcomes["refused"] += 1
            log.warning("log_message_refused", sequence=message.sequence, kind=message.kind, reason=str(error))
            return Applied()

    def _is_repeated(self, key: str) -> bool:
        sender, _, number = key.rpartition("-")
        numbers = self._numbers.pop(sender, [])
        self._numbers[sender] = numbers
        if len(self._numbers) > MAX_SENDERS:
            del self._numbers[next(iter(self._numbers))]
        if int(number) in numbers or (len(numbers) == NUMBERS_KEPT and int(number) < min(numbers)):
            return True
        numbers.append(int(number))
        del numbers[:-NUMBERS_KEPT]
        return False

    def _apply_marker(self, message: LogMessage) -> Applied:
        self.marker = message.sequence
        marker = Marker.decode(message.body)
        if marker.number <= self.markers:
            self.outcomes["repeated"] += 1
            return Applied()
        missed = self.markers > 0 and marker.number > self.markers + 1
        self.markers, self.exported = marker.number, marker.exported
        self.cut_by = marker.by
        self.outcomes["marker"] += 1
        self._note_rules(marker.rules)
        if self.parked:
            return Applied(marker=marker, missed=missed)
        early = marker.kind == "early_poll" and self.machine.early_poll(self.now)
        if marker.kind == "collectives_poll":
            self.machine.collectives.early_poll(self.now)
        result = self.machine.tick(self.now) if marker.kind == "tick" else None
        findings = self._findings.copy()
        self._findings.clear()
        records = result.changes() if result else None
        findings += [Push(Signal.LOGS, "protobuf", records)] if records else []
        return Applied(result, marker, findings, judged_early=early, missed=missed)

    def _note_rules(self, rules: str) -> None:
        if rules != self.current_rules:
            before = [*self._superseded, self.current_rules]
            self._superseded = [other for other in before if other and other != rules][-MAX_SUPERSEDED:]
            self.current_rules = rules

    # State

    def state_hash(self) -> str:
        """The hash that replicas compare. Cost is left out: every replica reads its own files of prices."""
        state = self.machine.state(self.now)
        return hash_of(encode_state({name: part for name, part in state.items() if name != "cost"}))

    def snapshot(self) -> bytes:
        """All of the state."""
        state: State = {
            "machine": self.machine.state(self.now), "sequence": self.sequence, "now": self.now,
            "marker": self.marker, "markers": self.markers, "cut_by": self.cut_by, "exported": self.exported,
            "rules": self.rules, "current_rules": self.current_rules, "numbers": self._numbers,
            "superseded": self._superseded,
        }  # fmt: skip
        return sealed(encode_state(state))

    def restore(self, data: bytes) -> None:
        """Continue from what `snapshot` returned; raises `SnapshotError`.

        A snapshot of other rules is used as far as possible.
        """
        state: dict[str, Any] = read_state(data)
        if "rules" not in state:
            raise SnapshotError("the snapshot is not one of a replica")
        self.machine.restore(state["machine"], continued=state["rules"] == self.rules)
        self.sequence, self.now, self.marker = state["sequence"], state["now"], state["marker"]
        self.markers, self.cut_by, self.exported = state["markers"], state["cut_by"], state["exported"]
        self._numbers, self._superseded = state["numbers"], state["superseded"]
        self.current_rules = state["current_rules"]
