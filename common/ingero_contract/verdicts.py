"""A verdict in one line, as it travels in a header: `straggler;kind=slow;since=1700000000;severity=0.31`."""

import math
from dataclasses import dataclass
from typing import Final

from ingero_contract.values import VerdictState

MAX_LENGTH: Final = 256
"""Longest accepted form, characters; longer text is not a verdict."""

ACTIONABLE: Final = frozenset({VerdictState.STRAGGLER, VerdictState.STOPPED, VerdictState.RECOVERING})
"""States in which a node counts as a straggler: it was accused and has not recovered yet."""


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """Fleet's verdict on the node that pushed.

    `since`: estimated onset, seconds since the epoch; `severity`: share of its own rate lost, 0 to 1. `collectives`:
    the kind of the accusation if the collectives of its job wait for this node, such as `late_rank`; that does not
    change the state.
    """

    state: VerdictState
    kind: str = ""
    since: float | None = None
    severity: float | None = None
    collectives: str = ""

    @property
    def is_straggler(self) -> bool:
        """Whether the node is accused and has not recovered yet."""
        return self.state in ACTIONABLE

    def format(self) -> str:
        """The header value."""
        parts = [str(self.state)]
        if self.kind:
            parts.append(f"kind={self.kind}")
        if self.since is not None:
            parts.append(f"since={self.since:.0f}")
        if self.severity is not None:
            parts.append(f"severity={self.severity:.4f}")
        if self.collectives:
            parts.append(f"collectives={self.collectives}")
        return ";".join(parts)


def parse_verdict(text: str) -> VerdictLine | None:
    """Parse a header value; `None` for anything that is not a verdict. Unknown keys are ignored."""
    if len(text) > MAX_LENGTH:
        return None
    head, *rest = text.strip().split(";")
    try:
        state = VerdictState(head.strip())
    except ValueError:
        return None
    fields = {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in rest)}
    kind, collectives = fields.get("kind", ""), fields.get("collectives", "")
    if not all(letter.isascii() and (letter.isalnum() or letter == "_") for letter in kind + collectives):
        return None
    return VerdictLine(
        state=state, kind=kind, since=_number(fields.get("since")), severity=_number(fields.get("severity")),
        collectives=collectives,
    )  # fmt: skip


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
