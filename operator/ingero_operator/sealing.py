"""How far an EchoStore's events are sealed, by its writers' answers: condition with the cure, and figures. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_contract import echo
from ingero_operator.api.base import seconds
from ingero_operator.api.shared_tables import TableSpec
from ingero_operator.api.status import SealingStatus
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.taints.state import timestamp_seconds

SEALED: Final = "SealingCurrent"
STEP: Final = 60
"""Times and lags are rounded down to whole minutes, so that the status changes at most once a minute."""
LEAST_LAG: Final = 300.0
"""Seconds without a seal that are never reported as standing still."""

_CURES: Final = {
    "shard_taken": (
        "ShardTaken",
        "another database seals under the name of this volume, which happens when its files were copied or restored: "
        "restore them into a new store, whose volume has a name of its own",
    ),
    "credentials_refused": (
        "CredentialsRefused",
        "the catalog or the object storage refuses the credentials: correct spec.table.credentialsSecret, which is "
        "read again at each attempt",
    ),
    "tables_unavailable": (
        "TablesUnavailable",
        "the catalog or the object storage cannot be used: see whether they run, spec.table.catalog, "
        "spec.table.egress and `seal_failed` in the log of the pod",
    ),
    "local": ("DatabaseFails", "the database or its volume fails: see `seal_failed` in the log of the pod"),
}
_BEHIND: Final = (
    "SealingBehind",
    "no attempt has failed, so sealing is slower than ingest or still runs: raise resources.cpu and resources.memory",
)


class _SealingAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    until: Annotated[float, Field(ge=0, le=4e9, allow_inf_nan=False)]
    files: Annotated[int, Field(ge=0, le=10**15)]
    failure: Annotated[str, Field(max_length=64)] | None = None
    source_away_since: Annotated[float, Field(ge=0, le=4e9, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, kw_only=True)
class SealingReport:
    """What one writer says, in steps."""

    until: int
    """Unix time until which all that arrived is sealed."""
    lag: int
    """Seconds from then to the poll."""
    files: int
    """Data files that were added since the writer started."""
    failure: str | None
    """Why the last attempt failed."""
    unread_since: int | None = None
    """Unix time since when the stream cannot be read, once that has lasted for a step."""


def parse_sealing(response: Any, now: float) -> SealingReport | None:
    """What a health answer of Echo says of sealing; `None` where it says nothing that can be read."""
    try:
        found = _SealingAnswer.model_validate(response.get(echo.SEALING) if isinstance(response, dict) else None)
    except ValidationError:
        return None
    away = found.source_away_since
    return SealingReport(
        until=int(found.until) // STEP * STEP, lag=int(max(0.0, now - found.until)) // STEP * STEP,
        files=found.files, failure=found.failure,
        unread_since=int(away) if away is not None and now - away >= STEP else None,
    )  # fmt: skip


def figures(reports: Sequence[SealingReport | None]) -> dict[str, Any] | None:
    """`status.sealing` of a store: the writer that is furthest behind counts. `None` while no writer answers."""
    known = [report for report in reports if report]
    if not known:
        return None
    shown = SealingStatus(
        sealed_until=timestamp_seconds(min(report.until for report in known)),
        lag_seconds=max(report.lag for report in known),
        files=sum(report.files for report in known),
    )
    return shown.model_dump(by_alias=True, exclude_none=True)


def sealing_current(
    table: TableSpec, reports: Sequence[SealingReport | None], before: Condition | None = None
) -> Condition:
    """Whether the events of a store reach the shared tables. `before`: the last condition, until a writer answers."""
    longest = max(LEAST_LAG, 3 * seconds(table.seal_interval))
    behind = [report for report in reports if report and (report.lag > longest or report.failure == echo.SHARD_TAKEN)]
    if behind:
        worst = min(behind, key=lambda report: (report.failure != echo.SHARD_TAKEN, report.until))
        reason, cure = _CURES.get(worst.failure or "", _BEHIND)
        message = (
            f"what arrived after {timestamp_seconds(worst.until)} is not sealed: {cure}. Events stay on the volume "
            "until they are sealed or older than spec.retention"
        )
        return no(SEALED, reason, message)
    unread = [report.unread_since for report in reports if report and report.unread_since is not None]
    if unread:
        message = (
            f"a writer cannot read its stream since {timestamp_seconds(min(unread))}, and what Fleet publishes stays "
            "there: see whether the servers in spec.source.nats run and accept its credentialsSecret and tls, and "
            "`log_away` in the log of the pod"
        )
        return no(SEALED, "StreamUnreadable", message)
    if all(reports):
        return yes(SEALED, "Sealing", f"events are sealed into {table.warehouse}")
    return before or unknown(
        SEALED, "NotPolled", "the health endpoint of Echo was not read yet: wait, or see Available"
    )
