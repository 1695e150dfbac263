"""Slurm nodes as the policy checks see them, and the reason by which a drain of ours is recognised. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from ingero_contract.kubernetes import EXCLUDE_LABEL
from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.taints.nodes import EFFECTS, NodeView, StragglerTaint, moment
from ingero_operator.taints.state import timestamp_seconds

EFFECT: Final = EFFECTS[Mode.PREFER_NO_SCHEDULE]
"""The effect that stands for a drain in the policy: when its time is over it ends, without a weaker one after it."""

EXCLUDE_FEATURE: Final = "ingero-exclude"
"""Feature of a node that is never drained."""

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_RUNNING: Final = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING"})
_LEAVING: Final = frozenset(
    {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "MAINTENANCE"}
)
_AWAY: Final = frozenset({"NOT_RESPONDING", "DOWN", "FAIL", "INVALID_REG", "INVALID", "UNKNOWN"})
_FIELD: Final = re.compile(r"(?:^|\s)(NodeName|State|Gres|Partitions|ActiveFeatures|BootTime)=(\S*)")
_REASON: Final = re.compile(r"\sReason=(.*?) \[([^\[\]@\s]*)@([^\]\s]*)\]")
_OURS: Final = re.compile(r"ingero\[([A-Za-z0-9._-]{1,63})\] ([0-9a-f]{8}) until ([0-9TZ:.+-]{1,32}): .*")
_MARKS: Final = "*~#!%$@^-+"


@dataclass(frozen=True, kw_only=True)
class SlurmNode:
    """A node as `scontrol` shows it."""

    name: str
    state: str
    flags: frozenset[str]
    gres: str = ""
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    booted: float = 0.0
    reason: str = ""
    reason_user: str = ""
    reason_at: float = 0.0


class UnreadableNodes(Exception):
    """The output of `scontrol` cannot be read; the text says why."""


def parse_slurm_nodes(text: str) -> list[SlurmNode]:
    """The nodes that `scontrol --oneliner show node` prints with TZ=UTC. Raises `UnreadableNodes`."""
    return [_parse_node(line) for line in text.splitlines() if line.strip()]


def _parse_node(line: str) -> SlurmNode:
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    if not NODE_NAME.fullmatch(fields.get("NodeName", "")) or "State" not in fields:
        raise UnreadableNodes(f"no node can be read in: {line[:80]!r}")
    state, *flags = fields["State"].rstrip(_MARKS).split("+")
    reason = _REASON.search(line)
    return SlurmNode(
        name=fields["NodeName"],
        state=state,
        flags=frozenset(flag.rstrip(_MARKS) for flag in flags) | _away_by_mark(fields["State"]),
        gres=_present(fields.get("Gres", "")),
        partitions=_listed(fields.get("Partitions", "")),
        features=_listed(fields.get("ActiveFeatures", "")),
        booted=_utc(fields.get("BootTime", "")),
        reason=reason.group(1) if reason else "",
        reason_user=reason.group(2) if reason else "",
        reason_at=_utc(reason.group(3)) if reason else 0.0,
    )


def _away_by_mark(state: str) -> frozenset[str]:
    """Older versions mark a node that does not respond with a star."""
    return frozenset({"NOT_RESPONDING"}) if "*" in state else frozenset()


def _present(value: str) -> str:
    return "" if value == "(null)" else value


def _listed(value: str) -> frozenset[str]:
    return frozenset(part for part in _present(value).split(",") if part)


def _utc(text: str) -> float:
    """A time that Slurm printed with TZ=UTC, seconds since the epoch; 0 for none."""
    return moment(f"{text}Z") if text else 0.0


def drain_reason(cluster: str, taint: StragglerTaint, text: str) -> str:
    """The reason of a drain: whose it is, which verdict, until when, and why."""
    facts = "".join(letter for letter in text if letter.isprintable() and letter not in "\"'[]")
    return f"ingero[{cluster}] {taint.verdict} until {timestamp_seconds(taint.expires)}: {facts[:160]}"


def read_drain(node: SlurmNode) -> StragglerTaint | None:
    """The drain of ours on a node, of whatever cluster; `None` when it is not drained or not by us."""
    found = _OURS.fullmatch(node.reason)
    if found is None or "DRAIN" not in node.flags:
        return None
    owner, verdict, expires = found.groups()
    return StragglerTaint(
        owner=owner, verdict=verdict, effect=EFFECT, since=node.reason_at, expires=moment(expires), node_uid=node.name
    )


def slurm_node_view(node: SlurmNode, *, needs_gpu: bool, excluded: frozenset[str]) -> NodeView:
    """The facts of a node. Its age is the time since its boot: no verdict from before counts."""
    taint = read_drain(node)
    leaving = node.flags & _LEAVING
    out = node.name in excluded or EXCLUDE_FEATURE in node.features
    return NodeView(
        name=node.name,
        uid=node.name,
        created=node.booted,
        labels={EXCLUDE_LABEL: "true"} if out else {},
        gpu=not needs_gpu or any(part.startswith("gpu") for part in node.gres.split(",")),
        ready=node.state in _RUNNING and not node.flags & _AWAY,
        cordoned=taint is None and bool(node.flags & {"DRAIN", "DRAINED", "DRAINING"}),
        disrupted=min(leaving) if leaving else "",
        taint=taint,
    )
