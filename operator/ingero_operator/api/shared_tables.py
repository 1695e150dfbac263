"""`spec.table` and `spec.readers` of an EchoStore: shared tables of Apache Iceberg, and pods that read them."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from ingero_operator.api.base import Part, Peer, Quantity, Resources, SecretKey, Span, rules

SECRET_PROPERTY: Final = "(?i)secret|password|token|credential|session|private|sas-|account-key"
"""Properties of catalogs that are secrets. Echo refuses them in its settings."""

PASSWORD_IN_ADDRESS: Final = "^[^/]*://[^/@]*:[^/@]+@"

LEAST_CACHE: Final = "1Gi"


class Vouched(StrEnum):
    """What vouches for the encryption of a bucket."""

    DECLARED = "Declared"


class CatalogProperty(Part):
    """A property of the catalog as PyIceberg takes it."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Its name, such as `type`, `uri` or `s3.endpoint`."""
    value: Annotated[str, Field(max_length=512)]
    """Its value."""

    model_config = rules(
        (
            f"!self.name.matches('{SECRET_PROPERTY}')",
            "spec.table.catalog: this property is a secret: use spec.table.credentialsSecret",
            ".name",
        ),
        (
            f"!self.value.matches('{PASSWORD_IN_ADDRESS}')",
            "spec.table.catalog: this address has a password: use spec.table.credentialsSecret",
            ".value",
        ),
    )


class Destination(Part):
    """Where the catalog or the object storage is, for the NetworkPolicies."""

    port: Annotated[int, Field(ge=1, le=65535)]
    """TCP port."""
    cidr: Annotated[str, Field(min_length=4, max_length=43, pattern=r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$")] | None = None
    """Addresses; any without it and without `peer`."""
    peer: Peer | None = None
    """Pods."""

    model_config = rules(
        ("!has(self.cidr) || !has(self.peer)", "spec.table.egress: use either cidr or peer", ".peer"),
    )


class TableSpec(Part):
    """Shared tables that every event is sealed into, in a catalog and bucket of yours."""

    catalog: Annotated[
        tuple[CatalogProperty, ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """Properties of the catalog as PyIceberg takes them, without secrets."""
    credentials_secret: SecretKey | None = None
    """YAML with further properties of the catalog, such as `uri` with a password or `s3.secret-access-key`; they
    replace those of `catalog`."""
    warehouse: Annotated[
        str, Field(max_length=512, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$")
    ]
    """Folder of the tables, such as `s3://bucket/path`. Cannot be changed."""
    namespace: Annotated[str, Field(max_length=63, pattern=r"^[a-z][a-z0-9_]*$")] = "ingero"
    """Namespace of the tables in the catalog. Cannot be changed."""
    encryption: Vouched | None = None
    """`Declared`: you vouch that the bucket is encrypted at rest, and so are the disks of nodes where readers keep
    copies of its files. The operator can see neither; without it nothing is sealed."""
    seal_interval: Span = "60s"
    """Time between two seals."""
    keep: Span = "1h"
    """How long events stay on the volume after they were sealed; the store itself answers only from these."""
    retention: Annotated[str, Field(max_length=5, pattern=r"^[1-9][0-9]{0,3}d$")] | None = None
    """Days in the tables that ended longer ago are deleted; without it all stay."""
    egress: Annotated[tuple[Destination, ...], Field(min_length=1, max_length=16)] = (Destination(port=443),)
    """Where catalog and object storage are; the NetworkPolicies admit nothing else."""

    model_config = rules(
        ("self.warehouse == oldSelf.warehouse", "spec.table.warehouse cannot be changed", ".warehouse"),
        (
            "has(self.__namespace__) == has(oldSelf.__namespace__) && "
            "(!has(self.__namespace__) || self.__namespace__ == oldSelf.__namespace__)",
            "spec.table.namespace cannot be changed",
            ".namespace",
        ),
    )


class ReadersSpec(Part):
    """Pods that answer the same questions from the shared tables, and from what is not sealed yet."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Pods."""
    token_secret: SecretKey
    """A token that readers send to the store: one of `spec.tokenSecret` with the scope `read`, without clusters."""
    cache: Quantity = "10Gi"
    """Size of each pod's folder for copies of data files, on the disk of its node."""
    resources: Resources = Resources(cpu="250m", memory="1Gi")
    """Resources of the container."""

    model_config = rules(
        (
            "!has(self.cache) || (isQuantity(self.cache) && "
            f"quantity(self.cache).compareTo(quantity('{LEAST_CACHE}')) >= 0)",
            f"spec.readers.cache must be at least {LEAST_CACHE}",
            ".cache",
        ),
    )
