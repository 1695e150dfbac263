"""What is remembered from one decision to the next: marks adopted, windows counted, releases finished. Pure."""

from dataclasses import replace

from ingero_operator.taints.facts import Accused, Override, Rails, Step, World
from ingero_operator.taints.memory import DAY, OVERRIDDEN, Memory, Record, Streak


def compared(
    rails: Rails, world: World, memory: Memory, now: float
) -> tuple[Memory, tuple[Override, ...], tuple[Step, ...]]:
    """Bring records and nodes together: adopt marks, finish releases, respect what somebody else removed."""
    records: dict[str, Record] = {}
    overrides: list[Override] = []
    settled: list[Step] = []
    last_taint = memory.last_taint
    for name, record in memory.records.items():
        node = world.nodes.get(name)
        if node is None or node.uid != record.uid:
            # Another machine, or none: what was remembered of the old one says nothing about it.
            if node is None and not record.verdict and not record.idle(now, rails.quiet):
                records[name] = record
            continue
        mark = node.mark if node.mark is not None and node.mark.owner == world.owner else None
        left = record.verdict in node.strays
        if record.verdict and (mark is None or (record.effect and not mark.effect)):
            if record.releasing and not left:
                settled.append(Step(verb="remove", node=name, uid=node.uid, reason=record.releasing))
                record = replace(record, verdict="", effect="", releasing="", released=now)
            elif record.releasing != OVERRIDDEN and (left or not record.releasing):
                # What is left of the mark is known by the verdict alone: it is remembered until that is gone.
                overrides.append(Override(node=name, uid=node.uid, verdict=record.verdict))
                kept = replace(record, releasing=OVERRIDDEN) if left else replace(record, verdict="", effect="")
                record = replace(kept, released=now, hands_off_until=now + rails.hands_off)
        if not record.idle(now, rails.quiet):
            records[name] = record
    for node in world.nodes.values():
        mark = node.mark
        if mark is None or mark.owner != world.owner:
            continue
        record = records.get(node.name, Record(uid=node.uid))
        if record.verdict != mark.verdict and record.hands_off_until <= now:
            tainted = (*(time for time in record.tainted if now - time < DAY and time != mark.since), mark.since)[-8:]
            records[node.name] = replace(record, verdict=mark.verdict, effect=mark.effect, tainted=tainted)
            last_taint = max(last_taint, mark.since)
            settled.append(Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", mark=mark))
        elif record.verdict:
            records[node.name] = replace(record, effect=mark.effect if not record.releasing else record.effect)
    return replace(memory, records=records, last_taint=last_taint), tuple(overrides), tuple(settled)


def counted(world: World, memory: Memory, trusted: bool, now: float) -> Memory:
    """Count windows of accusation and of health; evidence that cannot be trusted breaks every count."""
    evidence = world.evidence
    if not trusted or evidence is None:
        return replace(memory, accused={}, well={}, tick=evidence.tick if evidence else "")
    if evidence.tick == memory.tick:
        kept = {name: streak for name, streak in memory.accused.items() if _same_machine(world, name, streak)}
        return replace(memory, accused=kept)
    streaks: dict[str, Streak] = {}
    for name, item in evidence.accused.items():
        node = world.nodes.get(name)
        if node is None or not item.active or (item.since is not None and item.since < node.created):
            continue
        before = memory.accused.get(name)
        if before is not None and _same_machine(world, name, before):
            streaks[name] = replace(before, windows=before.windows + 1)
        else:
            streaks[name] = Streak(uid=node.uid, provider_id=node.provider_id, since=now, windows=1)
    well = {name: memory.well.get(name, now) for name in evidence.well if name not in evidence.accused}
    return replace(memory, accused=streaks, well=well, tick=evidence.tick)


def _same_machine(world: World, name: str, streak: Streak) -> bool:
    node = world.nodes.get(name)
    return node is not None and (node.uid, node.provider_id) == (streak.uid, streak.provider_id)


def is_confirmed(rails: Rails, item: Accused, streak: Streak | None, now: float) -> bool:
    """Whether an accusation has held long enough, in our own count and in Fleet's."""
    return (
        streak is not None
        and item.active
        and streak.windows >= rails.confirm_windows
        and item.windows >= rails.confirm_windows
        and now - streak.since >= rails.confirm_for
    )


def attempted(memory: Memory, step: Step, now: float) -> Memory:
    """What to remember after a write whose answer was lost: perhaps it was done, so that it counts for every limit.

    A mark that is found later on the node is known by the time in it and does not count twice.
    """
    if step.mark is None or step.verb not in ("add", "raise"):
        return memory
    records = dict(memory.records)
    if step.verb == "add":
        record = records.get(step.node, Record(uid=step.uid))
        times = (*(time for time in record.tainted if now - time < DAY), step.mark.since)[-8:]
        records[step.node] = replace(record, uid=step.uid, tainted=times)
    return replace(memory, records=records, last_taint=now)


def done(memory: Memory, step: Step, now: float) -> Memory:
    """What to remember after a step was written."""
    memory = attempted(memory, step, now)
    records = dict(memory.records)
    record = records.get(step.node, Record(uid=step.uid))
    if step.mark is None:
        records[step.node] = replace(record, verdict="", effect="", releasing="", released=now)
    else:
        records[step.node] = replace(record, uid=step.uid, verdict=step.mark.verdict, effect=step.mark.effect)
    return replace(memory, records=records)
