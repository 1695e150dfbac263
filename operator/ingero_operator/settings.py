"""Settings of the operator: flags and INGERO_OPERATOR_* variables."""

import os
import re
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ingero_kit.addresses import Endpoint
from ingero_kit.settings import Duration, Settings
from ingero_operator.api.v1alpha1 import Policy
from ingero_operator.render.images import COMPONENTS, IMAGE, LOCAL, image_name, qualified

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _listed(value: object) -> object:
    """Names with commas between, also within the items of a list: a flag can be repeated."""
    if not isinstance(value, str | list | tuple):
        return value
    items = [value] if isinstance(value, str) else value
    found = (item.split(",") if isinstance(item, str) else [item] for item in items)
    names = (name.strip() if isinstance(name, str) else name for part in found for name in part)
    return [name for name in names if name != ""]


def _pairs(value: object) -> object:
    if isinstance(value, str):
        value = dict(part.strip().partition("=")[::2] for part in value.split(",") if part.strip())
    for name, digest in value.items() if isinstance(value, dict) else ():
        if name not in COMPONENTS or not _DIGEST.fullmatch(str(digest)):
            raise ValueError(f"{name}={digest}: one of {', '.join(COMPONENTS)} and sha256:… were expected")
    return value


Listed = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Names; a flag or a variable gives them with commas between."""


class OperatorConfig(Settings):
    """`ingero-operator run`."""

    namespace: str = "ingero-system"
    """Namespace of the operator itself and of its Lease."""
    identity: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        json_schema_extra={"default_in_words": "host name and process id"},
    )
    """Name of this replica in the Lease."""
    image_registry: str = LOCAL
    """Registry, and path in it, that every component's image is pulled from, as `registry.example.com/team`. The
    default is served by none: it means images that `make images` has built and that were loaded into the nodes."""
    image: str = IMAGE
    """Image of every component inside the registry, or with one of its own; {component} and {version} are filled
    in."""
    image_digests: Annotated[dict[str, str], BeforeValidator(_pairs)] = Field(
        default_factory=dict, json_schema_extra={"default_in_words": "–"}
    )
    """Digests that the images of the version below are pinned to, as `fleet=sha256:…,agent=sha256:…`."""
    allowed_images: Listed = ()
    """Image repositories that resources may name, as `registry.example.com/team/fleet`, or with a slash at the end
    for everything below; `*` for any. Those that the operator takes itself are always allowed."""
    image_pull_secrets: Listed = ()
    """Secrets for the registry that every pod is given; they must be in the namespaces of the resources."""
    version: str = Field(
        default_factory=lambda: version("ingero"), json_schema_extra={"default_in_words": "the operator's own"}
    )
    """Version of the components where a resource names none."""
    agent_priority_class: str = ""
    """PriorityClass of the agents' pods where a resource names none; it must exist."""
    fleet_url: str = "{scheme}://{name}-fleet.{namespace}.svc:8080"
    """Where Fleet's API of a FleetCluster is; {scheme}, {name} and {namespace} are filled in."""
    fleet_otlp_url: str = "{scheme}://{name}-fleet.{namespace}.svc:4318"
    """Where the Fleet of a FleetCluster receives OTLP over HTTP, for taint events."""
    echo_url: str = "https://{service}.{namespace}.svc:8080"
    """Where Echo's API of a Service of an EchoStore is, for the usage of its volumes and for previews; {name} is the
    EchoStore."""
    watch_namespaces: Listed = ()
    """Namespaces whose resources are reconciled; all without it. Roles in them are enough then for everything that
    has a namespace (`manifests/namespaced`)."""
    min_encryption: Policy = Policy.DECLARED
    """Least that must vouch for encryption at rest anywhere in the cluster."""
    taints: bool = True
    """Off: no node of this cluster is ever tainted, whatever a FleetCluster says; taints are only removed."""
    pause_taints: bool = False
    """On: no new taint in this cluster; existing ones stay until there is a reason to remove them."""
    node_policy: bool = True
    """Off: taints do not require an admission policy that limits what the operator may write to nodes."""
    listen: Endpoint = "0.0.0.0:8080"
    """Address of /healthz, /readyz and /metrics."""
    workers: int = Field(default=8, ge=1, le=64)
    """Resources reconciled at once."""
    resync: Duration = Field(default=600.0, ge=0.1)
    """How often everything is compared with the API server, spread by 20 %."""
    secret_poll: Duration = Field(default=60.0, ge=0.1)
    """How often the Secrets that resources name are read again; beyond 500 resources each less often."""
    poll: Duration = Field(default=4.0, ge=0.1)
    """Longest time between two polls of one Fleet."""
    polls_per_second: float = Field(default=25.0, gt=0)
    """Polls of all Fleets together; with many FleetClusters each is polled less often."""
    lease_duration: Duration = Field(default=15.0, ge=1)
    """How long a silent leader keeps the Lease."""
    leader_election: bool = True
    """Off: run at once, for development with one process."""
    nvsentinel: str = ""
    """Address (host:port) of NVSentinel's platform connector, which is sent a health event (stored only) when a
    condition `ingero.io/Straggler` changes; none without it."""
    nvsentinel_ca: Path | None = None
    """PEM of the CA that signed its certificate; without it those that gRPC trusts."""
    nvsentinel_token: Path | None = None
    """File with the token of the service account that it admits, with its audience."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""

    @model_validator(mode="after")
    def _templates(self) -> Self:
        try:
            image = image_name(self.image, self.image_registry, "fleet", "1")
            for url in (self.fleet_url, self.fleet_otlp_url):
                url.format(scheme="http", name="a", namespace="b")
            self.echo_url.format(name="a", service="a-echo", namespace="b")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"image, fleet_url, fleet_otlp_url or echo_url: unknown placeholder {error}") from None
        for name in self.watch_namespaces:
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
                raise ValueError(f"watch_namespaces: {name} is no name of a namespace")
        if not qualified(image):
            raise ValueError(f"image_registry: {image} names no registry, and each runtime would take its own")
        return self
