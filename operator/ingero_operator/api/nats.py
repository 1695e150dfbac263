"""Connections to a NATS cluster with JetStream: the log of several Fleets, and the stream that an Echo reads."""

from typing import Annotated, Final

from pydantic import Field

from ingero_operator.api.base import ObjectName, Part, Quantity, SecretKey, rules

_SERVER: Final = r"^((nats|tls)://)?[A-Za-z0-9.\[\]:-]+:[1-9][0-9]{0,4}$"


class NatsTls(Part):
    """TLS to NATS."""

    ca_secret: ObjectName | None = None
    """Secret whose ca.crt is trusted; the system's authorities without it."""
    client_secret: ObjectName | None = None
    """Secret of type kubernetes.io/tls with the certificate that the client shows."""


class NatsAccess(Part):
    """How a client proves who it is, and whom it trusts."""

    credentials_secret: SecretKey | None = None
    """An NKEY seed, or the credentials file of a NATS user."""
    tls: NatsTls | None = None
    """TLS; plain text without it."""


class NatsCluster(NatsAccess):
    """A NATS cluster with JetStream, which you run; `manifests/examples/nats.yaml` is one."""

    servers: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=_SERVER)], ...],
        Field(min_length=1, max_length=16),
    ]
    """`host:port` of its servers."""

    @property
    def ports(self) -> list[int]:
        """Ports of its servers."""
        return sorted({int(server.rsplit(":", 1)[1]) for server in self.servers})


class Nats(NatsCluster):
    """A NATS cluster with JetStream, which you run; `manifests/examples/nats.yaml` is one."""

    prefix: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9_-]+$")]
    """Begins the names of everything that is stored there: another one for each FleetCluster. Cannot be changed."""

    model_config = rules(("self.prefix == oldSelf.prefix", "spec.fleet.log.nats.prefix cannot be changed", ".prefix"))


class NatsStream(NatsCluster):
    """A stream of NATS JetStream that Echo reads and Fleets publish to."""

    stream: Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[A-Za-z0-9_-]+$")]
    """Name of the stream of the first writer; the others have `-1` and so on behind it. Echo makes it. No other
    EchoStore that seals into the same tables may use it. Cannot be changed."""
    max_size: Quantity | None = None
    """Size at which a stream takes no more, so that Fleets keep what they have; NATS reserves it (4Gi)."""

    model_config = rules(
        ("self.stream == oldSelf.stream", "spec.source.nats.stream cannot be changed", ".stream"),
        (
            "!has(self.maxSize) || (isQuantity(self.maxSize) && "
            "quantity(self.maxSize).compareTo(quantity('1Mi')) >= 0)",
            "spec.source.nats.maxSize must be a quantity of 1Mi or more",
            ".maxSize",
        ),
    )


class EchoSource(Part):
    """What Echo reads by itself, in addition to what is pushed to it."""

    nats: NatsStream
    """A stream of NATS JetStream. What was read is deleted there once it is sealed, so a lost volume loses nothing
    that was published."""
