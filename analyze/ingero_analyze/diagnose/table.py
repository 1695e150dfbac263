"""The answer of `diagnose` as lines for a person: headline, cost, what to do next, evidence. Pure."""

from collections.abc import Iterable
from typing import Any, Final

from ingero_analyze.diagnose.hangs import HANGS
from ingero_analyze.diagnose.ras_hangs import RAS_HANGS
from ingero_analyze.diagnose.topology import sentence, slow_group_lines
from ingero_detect.ranks.diagnosis import ONE_RANK

NO_NODE: Final = "no node is the cause: "

SENTENCES: Final = {
    "node": "rank {ranks} delays the job",
    "stage_imbalance": f"{NO_NODE}the pipeline's stages are uneven",
    "stage_or_host": "the pipeline's stages are uneven, or the hosts of rank {stage_ranks} are slow: they do no "
    "more operations than others, and each takes longer",
    "sequence_imbalance": f"{NO_NODE}steps differ by their data, on whichever rank processes it",
    "place_in_ring": f"{NO_NODE}ranks compute the longer the later their part of a sequence is",
    "network": "no rank is the cause: collectives last longer after their last rank has arrived",
    "unknown": "the job is delayed, but whether by a rank or by its data is not certain; possible: rank {possible}",
    "few_stalls": "rank {possible} alone holds the others up in some steps, too few to prove that it is the cause",
    "few_steps": "rank {possible} is the last in nearly all steps, too few to prove that it is the cause",
    "late_together": "rank {possible} often come last together, too seldom to prove that they are the cause",
    "slower_part": "rank {possible} are slower than all others; by a fault, other hardware or more work, that is not "
    "known",
    "late_part": "all others wait for rank {possible}, whose compute does not show why",
    "may_be_stage": "rank {possible} are slow, or they are a stage of the pipeline that has more to do than others: "
    "nothing says which ranks are one stage",
    "act_as_one": "rank {possible} hold the others up together; one of them may only wait for another, in operations "
    "that were not recorded",
    "absent_ranks": "no rank that was recorded delays the job, but they wait together; not recorded: rank {possible}",
    "slow_groups": "no rank is proven to delay the job; some collectives last longer than those of like groups",
    "none": "no rank delays the job",
    "operations": "rank {possible} has more to do in {ops}, or a fault shows there only; the rest it computes as "
    "fast as its peers",
    "routed": "rank {possible} computes longer: more tokens may be routed to its experts, or it is slow; how many "
    "tokens each rank has was not recorded",
}

NEXT: Final = {
    "node": "compare clocks and throttling of its GPU with those of its peers (--dcgm), and look at the load of its "
    "host; if it stays slow, take its node out of the job",
    "waited_for": "look at what its host does before collectives (data loading, checkpoints, logs; py-spy dump shows "
    "it): its GPU need not be slow",
    "stage_or_host": "compare the GPUs of these ranks with those of other stages (--dcgm); if they are as fast, move "
    "layers from this stage to others",
    "stage_imbalance": "move layers from the stage that takes longest to others",
    "sequence_imbalance": "balance the lengths of sequences, or the tokens of experts, between ranks",
    "place_in_ring": "cut sequences so that all parts are equal work under the causal mask (zigzag)",
    "network": "look at the error counters and the speed of what is named (ibstat, nvidia-smi nvlink -s)",
    "few_stalls": "record more steps: more stalls of the same rank prove it",
    "few_steps": "record more steps: some dozen prove it; meanwhile compare its GPU with those of its peers (--dcgm)",
    "late_together": "record more steps, and look at what these ranks share, such as their host and its data loader",
    "slower_part": "compare hardware, clocks (--dcgm) and work of these ranks with those of the others, and look at "
    "what they share, such as their host and its data loader",
    "late_part": "look at what these ranks share, such as their host, its data loader and its network",
    "may_be_stage": "record the stage of each rank (column stage or pp_rank), or the group of its sends",
    "act_as_one": "record all groups in which these ranks communicate (tensor, data, pipeline, expert); meanwhile "
    "look at what they share, such as their host and its data loader",
    "absent_ranks": "record the ranks that are missing, in the same steps",
    "one_rank": "give the files of all ranks, or say with --column rank=COLUMN what tells them apart in this one",
    "slow_groups": "give --topology to see what the slow groups share",
    "operations": "compare the tokens or the partition of these operations between ranks before you drain a node",
    "routed": "record the tokens of each rank (column tokens) or the sizes of its all-to-all (column bytes), or "
    "operations other than those of experts; meanwhile compare its GPU with those of its peers (--dcgm)",
    "unknown": "record more steps, or the work of operations (column work), and compare the GPUs of these ranks",
    "hang": "py-spy dump and the log of this rank; dmesg and nvidia-smi -q of its node",
    "no_dump": "is the process still there? its log, dmesg (XID, out of memory), and its node",
    "mismatch": "compare what this rank calls with what the others call: the lines of the program are below",
    "order": "make the program call the collectives in one order on all ranks: its lines are below",
    "stuck": "errors of the transport (NCCL_DEBUG=INFO, counters of NICs) and of the GPUs (XID) of its members",
    "unclear_hang": "look first at the ranks that are certain, then at the possible ones; dumps of all ranks help",
}
"""What a person does next."""

MORE: Final = 1.05
"""Operations of a stage over those of others from which its partition, and not its hosts, makes it slow."""

HEADLINES: Final = (
    "by",
    "job",
    "reason",
    "also",
    "chores",
    "ranks_count",
    "possible_count",
    "collectives_count",
    "step_seconds",
)
"""Evidence that is told in other lines."""

PERCENT: Final = {
    "compute_share": "computing, share of a step",
    "largest_lag_share": "largest lag of a rank, share of a step",
    "waiting_in_their_groups": "waiting of recorded ranks in groups that lack one, share of a step",
    "last_in_share_of_steps": "the last to arrive, share of steps",
    "odd_share_of_cells": "unusually long steps of ranks, share",
}

SHOWN_FRONTS: Final = 8
"""Collectives under way that the table has."""

SHOWN: Final = 16
"""Entries of a list that the table has."""


def headline(answer: dict[str, Any]) -> str:
    """What was found, in a sentence."""
    evidence, ranks = answer["evidence"], joined(answer["ranks"])
    if "gpu" in answer and not evidence and not ranks:
        return str(answer["gpu"]["reading"])
    if evidence.get("by") == "flight_recorder":
        likely = joined(evidence["most_likely"])
        return HANGS[answer["kind"]].format(ranks=ranks or "none") + (f"; most likely: {likely}" if likely else "")
    if evidence.get("by") == "ras":
        return RAS_HANGS[answer["kind"]].format(ranks=ranks or "none")
    of_job = f"in {evidence['job']}, " if "job" in evidence else ""
    if "reason" in evidence:
        return f"{of_job}nobody can be judged: {evidence['reason']}"
    return of_job + _sentence(answer["kind"], answer["ranks"], evidence)


def _sentence(kind: str, ranks: list[Any], finding: dict[str, Any]) -> str:
    ops = joined(dict.fromkeys(op for longer in finding.get("longer_in", {}).values() for op in longer))
    words = SENTENCES[_kind(kind, finding) if _kind(kind, finding) in SENTENCES else kind]
    possible, stage_ranks = joined(finding.get("possible", ())), joined(finding.get("stage_ranks", ()))
    return words.format(ranks=joined(ranks), possible=possible, ops=ops, stage_ranks=stage_ranks)


def _kind(kind: str, finding: dict[str, Any]) -> str:
    """The kind of a finding, of an `unknown` and of uneven parts by what shows it."""
    by = str(finding.get("by"))
    if kind == "stage_imbalance" and finding.get("operations_over_others", 2.0) < MORE:
        return "stage_or_host"
    if kind != "unknown":
        return by if by == "place_in_ring" else kind
    return by if by in NEXT else "unknown" if finding.get("possible") else "slow_groups"


def lines(answer: dict[str, Any]) -> list[str]:
    """Everything after the headline but claims and problems."""
    evidence = answer["evidence"]
    found = []
    lost = answer.get("seconds_lost_per_step")
    if lost and answer["kind"] != "none":
        times = f"{answer['slowdown']:.3f} times as long as it could"
        found.append(f"every step loses {lost:.4g} s; the job takes {times}")
    found += [
        f"besides, {_sentence(other['kind'], other['ranks'], other).removeprefix(NO_NODE)} "
        f"({other['seconds_lost_per_step']:.3g} s a step)"
        for other in evidence.get("also", ())
    ]
    found += [f"besides, {line}" for line in OWN_LINES["chores"](evidence["chores"])] if "chores" in evidence else []
    if "reason" in evidence and evidence.get("by") == "few_steps":
        found.append(f"possible: {_sentence(answer['kind'], [], evidence)}")
    found += [f"next: {step}" for step in _next(answer)]
    if evidence.get("by") in ("flight_recorder", "ras") and evidence.get("reason"):
        found.append(f"because: {evidence['reason']}")
    if "step_seconds" in evidence:
        period = f"{evidence['step_seconds']:.4g}"
        found.append(f"  {evidence['ranks']} ranks, {evidence['steps']} steps of {period} s")
    told = (*HEADLINES, *(("ranks", "steps", "possible") if "step_seconds" in evidence else ()))
    for name, value in evidence.items():
        if name not in told:
            found += [f"  {line}" for line in _evidence(name, value)]
    found += [f"  {line}" for line in _read(answer.get("read", {}))]
    if "network" in answer:
        found += [sentence(answer["network"]), *(f"  {line}" for line in slow_group_lines(answer["network"], 6))]
    return found + [
        f"  GPU {gpu['gpu']} of {gpu['node']}: {joined(gpu['why'])}"
        for gpu in answer.get("gpu", {}).get("throttled", [])
    ]


def _next(answer: dict[str, Any]) -> Iterable[str]:
    evidence, kind = answer["evidence"], answer["kind"]
    if kind == "none" or (not evidence and "gpu" in answer):
        return ()
    if evidence.get("by") in ("flight_recorder", "ras"):
        return (NEXT["unclear_hang" if kind == "unknown" else kind],)
    if "reason" in evidence and not evidence.get("possible"):
        return (NEXT["one_rank"],) if evidence["reason"] == ONE_RANK else ()
    if kind == "node" and str(evidence.get("by")).startswith(("blocked_least", "stalls", "idle")):
        return (NEXT["waited_for"],)
    found = _kind(kind, evidence)
    if found == "slow_groups" and answer.get("network", {}).get("possible"):
        found = "network"
    return (NEXT[found],)


def _evidence(name: str, value: Any) -> list[str]:
    """One kind of evidence as lines; nothing where it is empty."""
    if value is None or value in ([], {}, ()):
        return []
    if name in PERCENT:
        return [f"{PERCENT[name]}: {100 * value:.3g} %"]
    if name == "collectives":
        return [line for front in value[:SHOWN_FRONTS] for line in _front(front)]
    if name == "why" or (name == "possible" and isinstance(value, dict)):
        return _by_reason("possible" if name == "possible" else "rank", value)
    return OWN_LINES[name](value) if name in OWN_LINES else [f"{name.replace('_', ' ')}: {_words(value)}"]


OWN_LINES: Final = {
    "excess_share_of_step": lambda value: [
        f"rank {rank} needs {100 * share:.3g} % of a step more than its peers" for rank, share in _first(value)
    ],
    "lag_seconds": lambda value: [f"rank {rank} is waited for {lag:.3g} s a step" for rank, lag in _first(value)],
    "longer_in": lambda value: [
        f"rank {rank} needs longer, a step: " + joined(f"{op} {seconds:.3g} s" for op, seconds in ops.items())
        for rank, ops in _first(value)
    ],
    "as_fast_as_peers_in": lambda value: [
        f"rank {rank} is as fast as its peers in {joined(ops)}" for rank, ops in _first(value)
    ],
    "nodes": lambda value: [f"rank {rank} is on {node}" for rank, node in _first(value)],
    "hosts": lambda value: [f"these are all ranks of {joined(value)}, and no others"],
    "waiting_pairs": lambda value: [
        "in sends and receives that the other one has not called: "
        + joined(f"rank {one} waits for {other}" for one, other in value[:SHOWN])
    ],
    "last_calls": lambda value: _by_reason("last call of rank", {rank: _call(call) for rank, call in value.items()}),
    "earlier_run": lambda value: [
        f"rank {rank}: its dump is of an earlier run, with a last call at {last}" for rank, last in _first(value)
    ],
    "chores": lambda value: [
        f"once in {joined(value['every'])} steps rank {joined(value['ranks'])} does more, and all wait "
        f"({value['seconds_per_step']:.3g} s a step): checkpoints or logs, or a fault that keeps to this rhythm; "
        "ranks were compared without it"
    ],
    "jobs": lambda value: [
        f"{job}: {found['kind']}"
        + (f", rank {joined(found['ranks'])}" if found["ranks"] else "")
        + (f", possible: rank {joined(found['possible'])}" if "possible" in found else "")
        for job, found in _first(value)
    ],
    "not_recorded": lambda value: [f"not recorded: {value['count']} ranks, {joined(value['first'])}"],
}  # fmt: skip


def _read(read: dict[str, Any]) -> list[str]:
    """How a file was read, where its columns do not have the names of their roles."""
    columns, units = read.get("columns", {}), read.get("units", {})
    renamed = joined(f"{role} from {name}" for role, name in columns.items() if role != name)
    found = [f"read as: {renamed}"] if renamed else []
    if any(unit != "s" for unit in units.values()):
        found.append("times: " + joined(f"{role} in {unit}" for role, unit in units.items()))
    if "operations" in read:
        found.append(f"columns with times of operations: {joined(read['operations'])}")
    if "collectives_by_name" in read:
        found.append(f"collectives, by their names: {_words(read['collectives_by_name']) or 'none'}")
    return found


def _first(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())[:SHOWN]


def _by_reason(what: str, reasons: dict[str, str]) -> list[str]:
    """Ranks by reason, the reason of the fewest ranks first."""
    ranks: dict[str, list[str]] = {}
    for rank, reason in reasons.items():
        ranks.setdefault(reason, []).append(rank)
    return [f"{what} {joined(own)}: {reason}" for reason, own in sorted(ranks.items(), key=lambda item: len(item[1]))]


def joined(values: Iterable[Any]) -> str:
    """Values with commas in between."""
    return ", ".join(map(str, values))


def _words(value: Any) -> str:
    """Any value in words: numbers rounded, nothing for what is empty."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return joined(f"{str(name).replace('_', ' ')} {_words(item)}" for name, item in _first(value))
    if isinstance(value, list | tuple):
        rest = [f"and {len(value) - SHOWN} more"] if len(value) > SHOWN else []
        return joined([*map(_words, value[:SHOWN]), *rest])
    return str(value)


def _call(call: dict[str, Any]) -> str:
    return f"{call['op']} of {call['elements']} {call['types']}" + (f" at {call['place']}" if call["place"] else "")


def _front(front: dict[str, Any]) -> list[str]:
    """A sentence on one collective that did not end, and one for each way in which it was called."""
    words = f"{front['op']} {front['seq']} of group {front['group']}"
    words += f" ({front['description']})" if front["description"] else ""
    words += f": entered by {front['entered_count']}"
    words += f", missing: {joined(front['missing'])}" if front["missing"] else ""
    words += f", without a dump: {joined(front['without_dump'])}" if "without_dump" in front else ""
    words += f", differing: {joined(front['odd'])}" if "odd" in front else ""
    return [words, *(f"  rank {joined(call['ranks'])}: {_call(call)}" for call in front.get("calls", ()))]
