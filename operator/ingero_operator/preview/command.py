"""`ingero-operator preview`: reads manifests, cluster and Echo, and prints what a policy would have done."""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from ingero_contract.kubernetes import GROUP
from ingero_kit.files import not_utf8
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import read_token_lines
from ingero_kit.yaml_documents import load_yaml_documents
from ingero_operator import credentials
from ingero_operator.api.base import SecretKey
from ingero_operator.api.v1alpha1 import Budget, EchoStoreSpec, FleetClusterSpec, Taints
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.errors import ReconcileError
from ingero_operator.kinds import ECHO_STORE, FLEET_CLUSTER, NODE, SECRET, Manifest
from ingero_operator.preview.echo_client import EchoClient, EchoTarget
from ingero_operator.preview.history import History, longest_gap, read_history, runs_query, spans, verdicts_query
from ingero_operator.preview.replay import ReplaySetup, replay
from ingero_operator.preview.report import Preview, notes, shown_nodes
from ingero_operator.render.echo import READERS
from ingero_operator.render.shards import writer
from ingero_operator.resources import is_paused, parse
from ingero_operator.settings import OperatorConfig
from ingero_operator.taints.nodes import NodeView, node_view
from ingero_operator.taints.state import DAY

SPAN_SECONDS: Final = 6 * 3600.0
"""Length of the part of the window that one query about reports covers."""


class PreviewError(Exception):
    """The preview is impossible; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of the command."""

    days: float
    echo: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class _Cluster:
    """What the API server knows."""

    present: Manifest | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    facts: bool = False
    """Whether the nodes are known."""
    echo: EchoTarget | None = None


def read_manifest(stream: IO[str], name: str) -> Manifest:
    """The one FleetCluster of a file. Raises `SettingsError`."""
    try:
        trees = [tree for tree in load_yaml_documents(stream.read()) if isinstance(tree, dict)]
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name}: {not_utf8(error)}") from None
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
    found = [
        tree for tree in trees
        if tree.get("kind") == FLEET_CLUSTER.name and str(tree.get("apiVersion", "")).startswith(f"{GROUP}/")
    ]  # fmt: skip
    if len(found) != 1:
        raise SettingsError(f"{name}: {len(found)} FleetClusters of {GROUP}; one was expected")
    resource = found[0]
    metadata = resource.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise SettingsError(f"{name}: metadata.name is missing")
    spec_of(resource, name)
    return resource


def spec_of(resource: Manifest, name: str) -> FleetClusterSpec:
    """The spec. Raises `SettingsError` for one that the API server would not take as it is meant."""
    spec = parse(FleetClusterSpec, resource)
    if isinstance(spec, ReconcileError):
        raise SettingsError(f"{name}: {spec.message}")
    taints = (resource.get("spec") or {}).get("taints") or {}
    unknown = [f"taints.{key}" for key in taints.keys() - _names(Taints)]
    unknown += [f"taints.budget.{key}" for key in (taints.get("budget") or {}).keys() - _names(Budget)]
    if unknown:
        raise SettingsError(f"{name}: spec.{min(unknown)}: there is no such field")
    return spec


def _names(part: type[Taints] | type[Budget]) -> set[str]:
    return {item.alias or name for name, item in part.model_fields.items()}


async def preview(proposed: Manifest, present: Manifest | None, options: Options, now: float) -> Preview:
    """The preview of both policies. Raises `SettingsError`, `PreviewError`, `EchoError` and `ApiError`."""
    spec = spec_of(proposed, "the proposed FleetCluster")
    cluster = _Cluster() if options.offline else await _ask_cluster(proposed, spec)
    present = present or cluster.present
    known_spec = spec_of(present, "the present FleetCluster") if present is not None else None
    recorded = known_spec or spec
    if known_spec is not None and known_spec.cluster_id != spec.cluster_id:
        raise SettingsError(
            f"spec.clusterId is {spec.cluster_id} in one policy and {known_spec.cluster_id} in the other"
        )
    setup = ReplaySetup.from_spec(spec, _pause(proposed))
    interval = ReplaySetup.from_spec(recorded).interval
    until = float(int(now))
    history = await _ask_echo(_target(options, cluster), spec.cluster_id, until - options.days * DAY, until, interval)
    if not history.accusations and not history.runs:
        raise PreviewError(f"Echo has no record of cluster {spec.cluster_id} in the last {options.days:g} days")
    before = None
    if known_spec is not None and present is not None:
        before = replay(ReplaySetup.from_spec(known_spec, _pause(present)), history, cluster.nodes)
    selected = {name: node for name, node in cluster.nodes.items() if setup.selector.items() <= node.labels.items()}
    return Preview(
        cluster=spec.cluster_id, history=history, proposed=replay(setup, history, cluster.nodes), present=before,
        nodes=shown_nodes(history, selected),
        notes=notes(history, interval, facts=cluster.facts, actionable=setup.actionable),
    )  # fmt: skip


def _pause(resource: Manifest) -> str:
    return "the resource carries the annotation ingero.io/paused" if is_paused(resource) else ""


async def _ask_echo(target: EchoTarget, cluster: str, since: float, until: float, interval: float) -> History:
    since = float(int(since))
    async with EchoClient(target) as client:
        verdicts = [row async for row in client.rows(verdicts_query(cluster, since, until))]
        runs: list[dict[str, Any]] = []
        for begin, end in spans(since, until, SPAN_SECONDS):
            runs += [row async for row in client.rows(runs_query(cluster, begin, end, longest_gap(interval)))]
    return read_history(verdicts, runs, since, until, interval)


def _target(options: Options, cluster: _Cluster) -> EchoTarget:
    """Where Echo is and how to be let in: the flags, and from the EchoStore what they do not say."""
    found = cluster.echo or EchoTarget(url="")
    url = options.echo or found.url
    if not url:
        raise SettingsError("which Echo? --echo is missing, and no EchoStore was found through spec.fleet.forward")
    token, authority = found.token, found.authority
    if options.token_file:
        token = usable_token([line for _, line in read_token_lines(options.token_file)])
    if options.ca_file:
        try:
            authority = options.ca_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else not_utf8(error)
            raise SettingsError(f"--ca-file {options.ca_file} cannot be read: {reason}") from None
    return EchoTarget(url=url, token=token, authority=authority)


def usable_token(lines: list[str]) -> str:
    """The first token that may use SQL, of lines in the form of Echo's token file."""
    words = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for token, *rest in words:
        scopes = next((word.removeprefix("scopes=") for word in rest if word.startswith("scopes=")), "sql")
        if "sql" in scopes.split(",") and not any(word.startswith("clusters=") for word in rest):
            return token
    return words[0][0] if words else ""


async def _ask_cluster(proposed: Manifest, spec: FleetClusterSpec) -> _Cluster:
    """What the cluster of the current context knows; nothing where there is none."""
    connection = await asyncio.to_thread(credentials.login)
    if connection is None:
        return _Cluster()
    metadata = proposed["metadata"]
    namespace = metadata.get("namespace") or connection.default_namespace or "default"
    async with ApiClient(connection) as api:
        present = await api.get(FLEET_CLUSTER, namespace, metadata["name"])
        try:
            nodes = {node.name: node async for node in _nodes(api)}
        except ApiError as error:
            if error.status != 403:
                raise
            nodes = {}
        forward = spec.fleet.forward
        echo = await _echo_store(api, namespace, forward.echo_store) if forward and forward.echo_store else None
    return _Cluster(present=present, nodes=nodes, facts=bool(nodes), echo=echo)


async def _nodes(api: ApiClient) -> Any:
    async for body in api.every(NODE):
        yield node_view(body)


async def _echo_store(api: ApiClient, namespace: str, name: str) -> EchoTarget | None:
    """The Echo of an EchoStore; `None` without one. Secrets that may not be read are left to the flags."""
    store = await api.get(ECHO_STORE, namespace, name)
    if store is None:
        return None
    spec = parse(EchoStoreSpec, store)
    if isinstance(spec, ReconcileError):
        return None
    tokens = await _secret(api, namespace, spec.token_secret)
    authority = await _secret(api, namespace, SecretKey(name=spec.tls_secret, key="ca.crt"))
    service = f"{name}-{READERS if spec.shards > 1 else writer(0)}"
    url = OperatorConfig().echo_url.format(name=name, service=service, namespace=namespace)
    return EchoTarget(url=url, token=usable_token(tokens.splitlines()), authority=authority)


async def _secret(api: ApiClient, namespace: str, secret: SecretKey) -> str:
    try:
        body = await api.get(SECRET, namespace, secret.name)
        return base64.b64decode(((body or {}).get("data") or {}).get(secret.key, "")).decode()
    except (ApiError, ValueError):
        return ""
