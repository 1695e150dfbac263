"""Drains and undrains: one pass observes Slurm and Fleet, decides by the taint policy, and writes with `scontrol`."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.fleet_answers import PollResult
from ingero_operator.slurm.nodes import EFFECT, NODE_NAME, SlurmNode, UnreadableNodes, drain_reason, slurm_node_view
from ingero_operator.slurm.scontrol import Scontrol, ScontrolFailed
from ingero_operator.slurm.settings import SlurmSettings
from ingero_operator.slurm.state_store import DrainStateStore
from ingero_operator.taints.model import ClusterObservation, Decision, Step
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.policy import decide
from ingero_operator.taints.removals import note_releases
from ingero_operator.taints.state import TaintState
from ingero_operator.taints.tracking import after_attempt, after_write

log = get(__name__)

REFUSED: Final = Backoff(first=20.0, longest=300.0, jitter=0.3)
"""Pauses before a refused drain is tried again, longer than one between two passes: another node has its turn."""
MAX_LOGGED: Final = 1024
"""Most messages that are remembered, so that each is logged once."""


def describe_drain(step: Step) -> str:
    """A step in a sentence."""
    if step.taint is None:
        return f"Node {step.node} was undrained: {step.reason}"
    if step.verb == "renew":
        return f"Node {step.node} stays drained: {step.reason}"
    return f"Node {step.node} was drained: {drain_facts(step)}"


def drain_facts(step: Step) -> str:
    """Why a node is drained, in a few words."""
    taint = step.taint
    if taint is None:
        return step.reason
    facts = [taint.kind or "straggler"]
    if taint.severity is not None:
        facts.append(f"{taint.severity:.0%} lost")
    elif taint.score is not None and taint.threshold is not None:
        facts.append(f"score {taint.score:.2f} below {taint.threshold:.2f}")
    return ", ".join([*facts, f"{taint.windows} windows"])


@dataclass(frozen=True)
class _Refusal:
    """A node whose last drains, one or more, failed; the next one follows at `due`."""

    count: int
    due: float


@dataclass
class SlurmController:
    """The drains of one cluster. `audit` is called for every drain, renewal and undrain that was written."""

    settings: SlurmSettings
    store: DrainStateStore
    clock: Clock
    audit: Callable[[Step, str], None]
    state: TaintState = field(init=False)
    chance: Callable[[], float] = random.random
    _refused: dict[str, _Refusal] = field(default_factory=dict)
    _logged: dict[tuple[str, ...], None] = field(default_factory=dict)
    _checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.store.load()
        config = self.settings
        self._policy = config.policy()
        self._scontrol = Scontrol(program=config.scontrol, timeout=config.scontrol_timeout)

    @property
    def drained(self) -> frozenset[str]:
        """Nodes whose recovery must be observed."""
        return frozenset(name for name, record in self.state.records.items() if record.verdict)

    async def run_pass(self, result: PollResult | None, *, release: bool = False) -> Decision:
        """Decide once and write. `release`: undrain every node that was drained for this cluster.

        Raises `ScontrolFailed`, `UnreadableNodes` when Slurm cannot be read, and `OSError` when the state cannot be
        saved: nothing is written then.
        """
        observed = self._observe(await self._scontrol.nodes(), result, release)
        decision = decide(self._policy, observed, self.state, self.clock())
        for override in decision.overrides:
            log.warning("drain_overridden", node=override.node, verdict=override.verdict)
        self._log_checks(decision)
        if not self.settings.drain:
            self.state = decision.state
            for step in decision.steps:
                self._once("dry_run", step.verb, step.node, step.verdict, f"{step.reason} {drain_facts(step)}")
            return decision
        self.state = note_releases(decision.state, [step for step in decision.steps if step.weakens])
        self.store.save(self.state)
        for step in decision.found_done:
            self._report(step)
        for step in decision.steps:
            await self._try_step(observed, step)
        return decision

    def _observe(
        self, found: Mapping[str, SlurmNode], result: PollResult | None, release: bool
    ) -> ClusterObservation:
        config, now = self.settings, self.clock()
        wanted = frozenset(config.partitions)
        watched = frozenset(name for name, node in found.items() if not wanted or node.partitions & wanted)
        self._refused = {name: item for name, item in self._refused.items() if now < item.due + REFUSED.longest}
        nodes = {name: self._view(node) for name, node in found.items()}
        return ClusterObservation(
            owner=config.cluster_id,
            nodes={name: node for name, node in nodes.items() if name in watched or self._concerns(node)},
            watched=watched,
            evidence=result.evidence if result else None,
            refused=frozenset(name for name, item in self._refused.items() if now < item.due),
            paused="the settings say so" if config.paused else "",
            deleting=release,
        )

    def _concerns(self, node: NodeView) -> bool:
        ours = node.taint is not None and node.taint.owner == self.settings.cluster_id
        return ours or node.name in self.state.records

    def _view(self, node: SlurmNode) -> NodeView:
        config = self.settings
        return slurm_node_view(node, needs_gpu=config.needs_gpu, excluded=frozenset(config.exclude))

    async def _try_step(self, observed: ClusterObservation, step: Step) -> None:
        """Write one step, if the node is still as it was decided about; a refusal delays no other node."""
        before = self._refused.get(step.node)
        if before and self.clock() < before.due:
            return
        state = self.state
        try:
            live = await self._scontrol.node(step.node)
            if live is None or not self._still_right(observed.nodes[step.node], self._view(live), step):
                return
            if step.strengthens:
                self.state = after_attempt(self.state, step, self.clock())
                self.store.save(self.state)
            await self._write(step)
        except ScontrolFailed as error:
            log.warning("not_written", verb=step.verb, node=step.node, reason=str(error))
            if step.strengthens:
                count = before.count if before else 0
                due = self.clock() + REFUSED.delay(count, self.chance())
                self._refused[step.node] = _Refusal(count + 1, due)
                if await self._is_unchanged(observed.nodes[step.node]):
                    self.state = state  # nothing was written, so that the next node need not wait
                    self.store.save(state)
            return
        self._refused.pop(step.node, None)
        self.state = after_write(self.state, step, self.clock())
        self.store.save(self.state)
        self._report(step)

    async def _is_unchanged(self, decided: NodeView) -> bool:
        """Whether a node is known to be as it was decided about."""
        try:
            live = await self._scontrol.node(decided.name)
        except (ScontrolFailed, UnreadableNodes):
            return False
        return live is not None and self._view(live) == decided

    def _still_right(self, decided: NodeView, live: NodeView, step: Step) -> bool:
        """A drain needs the same node; an undrain needs our own drain, with the same verdict."""
        if step.verb == "add":
            return live == decided
        ours = live.taint
        return ours is not None and ours.owner == self.settings.cluster_id and ours.verdict == step.verdict

    async def _write(self, step: Step) -> None:
        if step.taint is None:
            await self._scontrol.undrain(step.node)
            return
        reason = drain_reason(self.settings.cluster_id, step.taint, drain_facts(step))
        write = self._scontrol.drain if step.verb == "add" else self._scontrol.renew
        await write(step.node, reason)

    def _report(self, step: Step) -> None:
        message = describe_drain(step)
        log.info(
            "node_written", verb=step.verb, node=step.node, reason=step.reason, verdict=step.verdict, message=message
        )
        self.audit(step, message)

    def _log_checks(self, decision: Decision) -> None:
        """Log which check prevents a drain, whenever that changes."""
        checks = {item.node: item.check for item in decision.checks if NODE_NAME.fullmatch(item.node)}
        for item in decision.checks:
            if item.node in checks and self._checks.get(item.node) != item.check:
                message = item.message.replace("spec.taints.", "").replace(EFFECT, "drain")
                log.info("check", node=item.node, check=item.check, message=message)
        self._checks = checks

    def _once(self, *message: str) -> None:
        if message not in self._logged:
            if len(self._logged) >= MAX_LOGGED:
                self._logged.clear()
            self._logged[message] = None
            event, verb, node, verdict, reason = message
            log.info(event, would=verb, node=node, verdict=verdict, reason=reason)
