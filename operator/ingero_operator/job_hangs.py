"""Whether jobs hang, as agents learn from NCCL RAS, by Fleet's own answer. Pure."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ingero_contract.values import HangVerdict
from ingero_operator.conditions import Condition, no, yes
from ingero_operator.taints.nodes import moment
from ingero_operator.taints.state import timestamp_seconds

PROGRESS: Final = "JobsProgress"

SHOWN: Final = 3
"""Most jobs, and most ranks of each, that a message names."""

_Text = Annotated[str, Field(max_length=512)]


class _HungRank(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    rank: int | _Text
    host: _Text


class _HungJob(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    kind: _Text
    since: _Text
    job_id: _Text | None = None
    comm: _Text | None = None
    op: _Text | None = None
    ranks: Annotated[list[_HungRank], Field(max_length=64)]
    rank_count: Annotated[int, Field(ge=0, le=10**9)]


_HUNG: Final = TypeAdapter(Annotated[list[_HungJob], Field(max_length=1000)])
_COUNT: Final = TypeAdapter(Annotated[int, Field(strict=True, ge=0, le=10**9)])


def parse_hangs(watched: Any, hangs: Any) -> tuple[str, ...] | None:
    """The jobs that hang, in words; `None` where agents watch no job, or Fleet's answer cannot be read."""
    try:
        count, jobs = _COUNT.validate_python(watched), _HUNG.validate_python(hangs)
    except ValidationError:
        return None
    return tuple(map(_in_words, jobs)) if count or jobs else None


def jobs_progress(hanging: tuple[str, ...] | None) -> Condition | None:
    """Whether no watched job hangs; no condition where none is watched."""
    if hanging is None:
        return None
    if hanging:
        more = f"; and {len(hanging) - SHOWN} more" if len(hanging) > SHOWN else ""
        return no(PROGRESS, "Hang", f"{'; '.join(hanging[:SHOWN])}{more}. No node is tainted for it")
    return yes(PROGRESS, "NoHang", "no job that agents watch hangs")


def _in_words(job: _HungJob) -> str:
    since = moment(job.since)
    ranks = ", ".join(f"rank {rank.rank} on {rank.host}" for rank in job.ranks[:SHOWN])
    more = f" and {job.rank_count - SHOWN} more" if job.rank_count > SHOWN else ""
    cause = "for a cause that is not known"
    if job.ranks:
        cause = f"for {'the dead process of ' if job.kind == HangVerdict.DEAD else ''}{ranks}{more}"
    place = f" in {job.op or 'a collective'} of communicator {job.comm}" if job.comm else ""
    name = f"job {job.job_id}" if job.job_id else "a job"
    begun = timestamp_seconds(since) if since else "an unknown time"
    return "".join(filter(str.isprintable, f"{name} waits since {begun}{place} {cause}"))
