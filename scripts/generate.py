"""Print the generated documents: `python -m scripts.generate [--check]`."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ingero_agent.settings import AgentSettings
from ingero_agent.trace.settings import TraceSettings
from ingero_echo.query_service import TOOLS
from ingero_echo.schema_versions import schema_text
from ingero_echo.settings import EchoConfig
from ingero_fleet.settings import FleetConfig
from ingero_kit.flags import default_text
from ingero_operator.render.crds import all_definitions, echo_stores, fleet_clusters
from ingero_operator.render.install import (
    NAMESPACE,
    OPERATOR,
    RIGHTS,
    WHOLE_CLUSTER,
    everything,
    namespace_access,
    rules,
)
from ingero_operator.render.text import dump
from ingero_operator.settings import OperatorConfig
from ingero_operator.slurm.settings import SlurmSettings
from ingero_sink.settings import SinkSettings
from scripts import chart, echo_dashboard, fleet_api, monitoring

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Printed by `make generate` from the code; edit the docstrings there. -->"


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    """The settings model behind a field, also behind `X | None`."""
    options = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((item for item in options if isinstance(item, type) and issubclass(item, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, dict):
        return "list prices"
    text = default_text(field)
    if field.default_factory is not None or not text:
        return text or "–"
    return f"`{text}`"


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """One table row for every setting, groups opened."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = _inner(field)
        if inner is None:
            yield f"| `{path}` | {_default(field)} | {' '.join((field.description or '').split())} |"
        else:
            yield f"| **`{path}`** | | {field.description or ''} |"
            yield from rows(inner, f"{path}.")


def configuration() -> str:
    """docs/configuration.md"""
    head = "| setting | default | meaning |\n| --- | --- | --- |"
    return "\n".join(
        [
            "# Settings",
            NOTE,
            "",
            "One precedence everywhere: flag, then environment variable, then YAML file, then default. An unknown",
            "name is an error that says where it stands. Durations are written `5s`, `1m30s`, `250ms`.",
            "",
            "## Fleet",
            "",
            "`ingero-fleet serve --config fleet.yaml`; a variable is `INGERO_FLEET_` and the path in capitals with",
            "`__` for each dot, a flag is `--set path=value`. `ingero-fleet validate` prints all settings in force.",
            "Token and certificate files are read again within a second of a change. SIGHUP reads",
            "`processors.ingero` and `processors.cost` again. Other settings, `cohort`, `push_interval` and",
            "`detector` among them, need a restart, and with `log.nats` all of `processors.ingero` does; the log",
            "names each one that changed.",
            "",
            head,
            *rows(FleetConfig),
            "",
            "## Agent",
            "",
            "`ingero-agent fleet-push --config agent.yaml`; a variable is `INGERO_AGENT_` and the name in capitals,",
            "a flag is the name with dashes. INGERO_AGENT_CONFIG names the file, too. Where none of them gives",
            "`fleet_endpoint`, it is `fleet.endpoint` of the published agent's file: the one that INGERO_CONFIG",
            "names, or the first of `./ingero.yaml` and `/etc/ingero/ingero.yaml`.",
            "",
            head,
            *rows(AgentSettings),
            "",
            "## Agent: tracing",
            "",
            "`ingero-agent trace --config agent.yaml`; the settings stand under `trace:` in the file of the agent. A",
            "variable is `INGERO_AGENT_TRACE_` and the name in capitals, a flag is the name with dashes. Sizes are",
            "written `500m`, `10g`. `check`, `query`, `explain` and `annotate` find database and socket here.",
            "",
            head,
            *rows(TraceSettings),
            "",
            "## Sink",
            "",
            "`ingero-sink --config sink.yaml`; a variable is `INGERO_SINK_` and the name in capitals, a flag is the",
            "name with dashes; that of `socket_paths` is `--remediate-socket`, once for each socket.",
            "",
            head,
            *rows(SinkSettings),
            "",
            "## Echo",
            "",
            "`ingero-echo serve --config echo.yaml`; a variable is `INGERO_ECHO_` and the path in capitals with `__`",
            "for each dot, a flag is `--set path=value`. `ingero-echo validate` prints all settings in force. Token",
            "and certificate files are read again within a second of a change. SIGHUP reopens the audit file.",
            "",
            head,
            *rows(EchoConfig),
            "",
            "## Operator",
            "",
            "`ingero-operator run --config operator.yaml`; a variable is `INGERO_OPERATOR_` and the name in",
            "capitals, a flag is the name with dashes.",
            "",
            head,
            *rows(OperatorConfig),
            "",
            "## Drains in Slurm",
            "",
            "`ingero-operator slurm --config slurm.yaml`; a variable is `INGERO_OPERATOR_SLURM_` and the name in",
            "capitals, a flag is the name with dashes.",
            "",
            head,
            *rows(SlurmSettings),
            "",
        ]
    )


def questions() -> str:
    """docs/questions.md"""
    lines = [
        "# Questions that Echo answers",
        NOTE,
        "",
        "Each is a tool of MCP, a path of the JSON API (`POST /api/v2/tools/<name>`), and `ingero-echo ask` with the",
        "name behind `fleet.cluster.`. All but SQL take `cluster_id`, `since`, `until` and `limit`; answers hold",
        "`summary` (one sentence), `rows`, `truncated` and `next_cursor`.",
        "",
        "| tool | answers | more arguments | a row |",
        "| --- | --- | --- | --- |",
    ]
    shared = {"cluster_id", "since", "until", "limit"}
    for tool in TOOLS.values():
        own = [name for name in tool.input_schema["properties"] if name not in shared]
        items = tool.output_schema["properties"]["rows"]["items"].get("properties", {})
        arguments = ", ".join(f"`{name}`" for name in own) or "–"
        columns = ", ".join(items) or "as selected"
        lines.append(f"| `{tool.name}` | {tool.description} | {arguments} | {columns} |")
    tables = [f"- `{line}`" for line in schema_text().splitlines()]
    return "\n".join([*lines, "", "## Tables", "", "SQL may read these; times are UTC.", "", *tables, ""])


def rights() -> str:
    """docs/rbac.md"""
    lines = [
        f"| {group or 'core'} | {', '.join(resources)} | {', '.join(verbs)} | "
        f"{'cluster' if resources[0] in WHOLE_CLUSTER else 'namespace'} | {what} |"
        for group, resources, verbs, what in RIGHTS
    ]
    head = "| API group | resources | verbs | needed in | what for |\n| --- | --- | --- | --- | --- |"
    words = [
        "`manifests/base` gives all of them in the whole cluster, `manifests/namespaced` those of a `namespace`",
        "by a Role in each namespace of `--watch-namespaces`.",
    ]
    return "\n".join(["# Rights of the operator", NOTE, "", *words, "", head, *lines, ""])


def cluster_role() -> str:
    """manifests/namespaced/cluster-role.yaml: the rights that no Role can give."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": OPERATOR}}
    return dump([{**role, "rules": rules(True)}])


def prometheus_rule() -> str:
    """manifests/monitoring/prometheus-operator/rules.yaml"""
    wave = {"argocd.argoproj.io/sync-wave": "-1"}
    metadata = {"name": "ingero", "labels": {"app.kubernetes.io/name": OPERATOR}, "annotations": wave}
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    return dump([{**rule, "metadata": {**metadata, "namespace": NAMESPACE}, "spec": {"groups": monitoring.groups()}}])


def argocd_health() -> str:
    """manifests/argocd/argocd-cm.yaml: keys for `argocd-cm`, one health check for each kind."""
    keys = [f"resource.customizations.health.ingero.io_{kind}" for kind in ("FleetCluster", "EchoStore")]
    check = (ROOT / "manifests/argocd/health.lua").read_text()
    metadata = {"name": "argocd-cm", "namespace": "argocd"}
    return dump([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict.fromkeys(keys, check)}])


DOCUMENTS: dict[str, Callable[[], str]] = {
    **monitoring.DOCUMENTS,
    **echo_dashboard.DOCUMENTS,
    **chart.DOCUMENTS,
    **fleet_api.DOCUMENTS,
    "docs/questions.md": questions,
    "docs/rbac.md": rights,
    "docs/configuration.md": configuration,
    "crds/fleetclusters.yaml": lambda: dump([fleet_clusters()]),
    "crds/echostores.yaml": lambda: dump([echo_stores()]),
    "manifests/base/crds.yaml": lambda: dump(all_definitions()),
    "manifests/base/operator.yaml": lambda: dump(everything(version("ingero"))),
    "manifests/namespaced/access.yaml": lambda: dump(namespace_access("ingero")),
    "manifests/namespaced/cluster-role.yaml": cluster_role,
    "manifests/argocd/argocd-cm.yaml": argocd_health,
    "manifests/monitoring/prometheus-operator/rules.yaml": prometheus_rule,
}


def main() -> int:
    """Write the documents, or with --check say which are not up to date."""
    check = "--check" in sys.argv[1:]
    stale = [
        name
        for name, build in DOCUMENTS.items()
        if (ROOT / name).exists() is False or (ROOT / name).read_text() != build()
    ]
    for name in stale:
        if check:
            print(f"{name} is not up to date: run `make generate`", file=sys.stderr)
        else:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(DOCUMENTS[name]())
            print(f"wrote {name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
