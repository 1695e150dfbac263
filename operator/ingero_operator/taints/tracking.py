"""Updates the state between decisions: adopts taints, counts windows, finishes releases. Pure."""

from dataclasses import replace

from ingero_contract.values import SLOW_FROM_START
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import Taints
from ingero_operator.taints.model import Accused, ClusterObservation, Override, Step
from ingero_operator.taints.nodes import StragglerTaint
from ingero_operator.taints.state import DAY, OVERRIDDEN, NodeTaintRecord, Streak, TaintState


def match_records(
    policy: Taints, observed: ClusterObservation, state: TaintState, now: float
) -> tuple[TaintState, tuple[Override, ...], tuple[Step, ...]]:
    """Match records with nodes: adopt taints, finish releases, respect removals by others."""
    records: dict[str, NodeTaintRecord] = {}
    overrides: list[Override] = []
    found_done: list[Step] = []
    last_taint = min(state.last_taint, now)  # another machine's clock may have been ahead
    for name, record in state.records.items():
        node = observed.nodes.get(name)
        if node is None or node.uid != record.uid:
            # The node is another machine, or gone: the record does not apply.
            if node is None and not record.verdict and not record.idle(now, seconds(policy.quiet)):
                records[name] = record
            continue
        taint = node.taint if node.taint is not None and node.taint.owner == observed.owner else None
        left = record.verdict in node.strays
        if record.verdict and (taint is None or (record.effect and not taint.effect)):
            if record.releasing and not left:
                found_done.append(
                    Step(verb="remove", node=name, uid=node.uid, reason=record.releasing, removed=record.verdict)
                )
            if _unrecorded_override(record, left):
                # The rest of the taint is recognised only by the verdict, which is kept until the taint is gone.
                overrides.append(Override(node=name, uid=node.uid, verdict=record.verdict))
                kept = replace(record, releasing=OVERRIDDEN)
                kept = kept if left else replace(record, verdict="", effect="", releasing="")
                record = replace(kept, released=now, override_cooldown_until=now + seconds(policy.hands_off))
            elif not left:
                record = replace(record, verdict="", effect="", releasing="", released=now)
        if not record.idle(now, seconds(policy.quiet)):
            records[name] = record
    for node in observed.nodes.values():
        taint = node.taint
        if taint is None or taint.owner != observed.owner:
            continue
        record = records.get(node.name, NodeTaintRecord(uid=node.uid))
        if record.verdict != taint.verdict and record.override_cooldown_until <= now:
            tainted = _times(record, taint, now)
            records[node.name] = replace(
                record, verdict=taint.verdict, effect=taint.effect, tainted=tainted, attempted=""
            )
            last_taint = max(last_taint, min(taint.since, now))
            found_done.append(Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", taint=taint))
        elif record.verdict:
            records[node.name] = replace(record, effect=taint.effect if not record.releasing else record.effect)
    return replace(state, records=records, last_taint=last_taint), tuple(overrides), tuple(found_done)


def _unrecorded_override(record: NodeTaintRecord, left: bool) -> bool:
    """Whether a user removed a taint, or a part of it, and the record does not say so yet. `left`: a part is there.

    An earlier process may have noted the release of the rest and ended before it recorded the removal by the user.
    """
    if record.releasing == OVERRIDDEN:
        return record.released < max(record.tainted, default=0.0)
    return left or not record.releasing


def count_windows(observed: ClusterObservation, state: TaintState, trusted: bool, now: float) -> TaintState:
    """Count windows of accusation and of health; evidence that cannot be trusted resets every count."""
    evidence = observed.evidence
    if not trusted or evidence is None:
        return replace(state, accused={}, healthy={}, tick=evidence.tick if evidence else "")
    if evidence.tick == state.tick:
        kept = {name: streak for name, streak in state.accused.items() if _same_machine(observed, name, streak)}
        return replace(state, accused=kept)
    streaks: dict[str, Streak] = {}
    for name, item in evidence.accused.items():
        node = observed.nodes.get(name)
        if node is None or not item.judged or (item.since is not None and item.since < node.created):
            continue
        before = state.accused.get(name)
        if before is not None and _same_machine(observed, name, before):
            streaks[name] = replace(before, windows=before.windows + 1)
        else:
            streaks[name] = Streak(uid=node.uid, provider_id=node.provider_id, since=now, windows=1)
    healthy = {name: state.healthy.get(name, now) for name in evidence.healthy if name not in evidence.accused}
    return replace(state, accused=streaks, healthy=healthy, tick=evidence.tick)


def _same_machine(observed: ClusterObservation, name: str, streak: Streak) -> bool:
    node = observed.nodes.get(name)
    return node is not None and (node.uid, node.provider_id) == (streak.uid, streak.provider_id)


def may_be_tainted(policy: Taints, item: Accused) -> bool:
    """Whether the policy allows to act on an accusation of this kind."""
    return item.judged and (policy.slow_from_start or item.kind != SLOW_FROM_START)


def is_confirmed(policy: Taints, item: Accused, streak: Streak | None, now: float) -> bool:
    """Whether an accusation may be acted on and has lasted long enough, by the operator's count and by Fleet's."""
    return (
        streak is not None
        and may_be_tainted(policy, item)
        and streak.windows >= policy.confirm_windows
        and item.windows >= policy.confirm_windows
        and now - streak.since >= seconds(policy.confirm_for)
    )


def after_attempt(state: TaintState, step: Step, now: float) -> TaintState:
    """The state after a write whose response was lost: it may have been done, so it counts for every limit.

    Attempts with the same verdict count once, whether or not the taint is later found on the node: while the API
    server does not answer, a node must not appear to be tainted again and again.
    """
    if step.taint is None or not step.strengthens:
        return state
    records = dict(state.records)
    if step.verb == "add":
        record = records.get(step.node, NodeTaintRecord(uid=step.uid))
        tainted = _times(record, step.taint, now)
        records[step.node] = replace(record, uid=step.uid, tainted=tainted, attempted=step.verdict)
    return replace(state, records=records, last_taint=now)


def after_write(state: TaintState, step: Step, now: float) -> TaintState:
    """The state after a step was written."""
    state = after_attempt(state, step, now)
    records = dict(state.records)
    record = records.get(step.node, NodeTaintRecord(uid=step.uid))
    if step.taint is None:
        records[step.node] = replace(record, verdict="", effect="", releasing="", released=now)
    else:
        records[step.node] = replace(
            record, uid=step.uid, verdict=step.taint.verdict, effect=step.taint.effect, attempted=""
        )
    return replace(state, records=records)


def _times(record: NodeTaintRecord, taint: StragglerTaint, now: float) -> tuple[float, ...]:
    """When the node was tainted in the last day, with this taint; an attempt to write it does not count as well."""
    earlier = (time for time in record.earlier(taint.verdict) if now - time < DAY and time != taint.since)
    return (*earlier, taint.since)[-8:]
