"""Settings of the log that several Fleets share."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ingero_kit.nats_settings import NatsServersConfig
from ingero_kit.settings import Duration, Settings


class NatsConfig(NatsServersConfig):
    """A NATS cluster with JetStream, 2.10 or newer."""

    prefix: str = Field(default="ingero", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    """Begins the names of the subjects, the stream and the bucket of snapshots; one for each set of replicas."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Size of the log at which its oldest messages are dropped; NATS reserves so much."""
    max_age: Duration = Field(default=1800.0, ge=120)
    """Age at which messages are dropped. A replica that was away for longer starts from a snapshot."""


class LogConfig(Settings):
    """The log that several Fleets share."""

    nats: NatsConfig | None = None
    """NATS JetStream; without it, this Fleet is alone."""
    role: Literal["replica", "receiver"] = "replica"
    """A `replica` receives and judges. A `receiver` publishes what it receives and answers by what replicas judge; it
    needs `nats`."""

    @model_validator(mode="after")
    def _with_a_log(self) -> Self:
        if self.role == "receiver" and self.nats is None:
            raise ValueError("role: a receiver needs log.nats")
        return self
