"""Grafana dashboard, Prometheus rules and the alerts' runbooks, generated from one table here."""

import json
from dataclasses import dataclass
from typing import Any

import yaml

RECORDING = {
    "ingero:active_nodes:sum": "sum by (cluster_id) (ingero_fleet_active_nodes)",
    "ingero:accused_nodes:count": "count by (cluster_id) (ingero_fleet_straggler == 1)",
    "ingero:coverage:ratio": (
        "(sum by (cluster_id) (ingero_fleet_active_nodes) + on (cluster_id) ingero_fleet_idle_nodes"
        " + on (cluster_id) ingero_fleet_calibrating_nodes) / on (cluster_id) (ingero_fleet_expected_nodes > 0)"
    ),
    "ingero:waiting_cost_per_hour:sum": "sum by (cluster_id, currency) (ingero_fleet_waiting_cost_per_hour)",
    "ingero:waiting:ratio": (
        "sum by (cluster_id) (ingero_fleet_waiting_cost_per_hour)"
        " / (sum by (cluster_id) (ingero_fleet_job_cost_per_hour) > 0)"
    ),
    "ingero:rejected_points:rate5m": "sum by (reason) (rate(ingero_fleet_rejected_points_total[5m]))",
    "ingero:pushes:rate5m": "sum by (signal) (rate(ingero_fleet_pushes_total[5m]))",
}
"""Recording rules: expression by name."""


@dataclass(frozen=True)
class Alert:
    """One alert. `runbook` says what to do; it becomes the alert's section in docs/alerts.md."""

    name: str
    expression: str
    after: str
    severity: str
    summary: str
    runbook: str


ALERTS = (
    Alert(
        "IngeroStraggler", "ingero_fleet_straggler == 1", "2m", "warning",
        "{{ $labels.node_id }} of {{ $labels.cluster_id }} slows down its job.",
        "Ask why: `curl '127.0.0.1:8081/api/v1/why?node_id=NODE'` on Fleet's host, or the live page. A "
        "weak `throughput` with other "
        "signals well points at the GPU (clocks, throttling, ECC); `cpu` at a neighbour or the host; "
        "`memory` at a leak. Drain the "
        "node if it stays a straggler. If another node then becomes the straggler, the work is the cause and not "
        "the node.",
    ),
    Alert(
        "IngeroLateRank", "ingero_fleet_collective_culprit_share > 0.02", "5m", "warning",
        "The collectives of {{ $labels.comm }} wait for {{ $labels.node_id }}"
        "{{ with $labels.rank }}, rank {{ . }}{{ end }}.",
        "More than 2 % of the time is lost to one rank. `/api/v1/collectives` shows the lag of every "
        "rank. A rank that is late and not "
        "slow by its own signals often loads data or writes checkpoints for the others. Without a rank, or with "
        "`nvml`, a GPU of the node is throttled: by temperature, hardware or power.",
    ),
    Alert(
        "IngeroJobHangs", "ingero_fleet_hanging_jobs > 0", "5m", "critical",
        "{{ $value }} jobs of {{ $labels.cluster_id }} hang ({{ $labels.kind }}).",
        "`hangs` of `/api/v1/collectives` names the communicator, the ranks that the others wait for, their hosts "
        "and processes. `dead`: NCCL considers these processes dead. `hang`: look at the stacks of these processes, "
        "as with `py-spy dump --pid`; a checkpoint that one rank writes for minutes looks the same, and is none. "
        "`unknown`: `possible` lists who remains.",
    ),
    Alert(
        "IngeroWaitingCostHigh", "ingero:waiting:ratio > 0.05", "15m", "warning",
        "{{ $value | humanizePercentage }} of what {{ $labels.cluster_id }} costs is spent waiting.",
        "`/api/v1/cost` lists the stragglers by their share of the cost, and what would be saved without each "
        "of them.",
    ),
    Alert(
        "IngeroPanic", "ingero_fleet_panic_mode == 1", "1m", "critical",
        "Too large a share of {{ $labels.cluster_id }} straggles; no node is tainted.",
        "Thresholds are frozen for five minutes and no node should be tainted. Search for what the nodes share: file "
        "system, network, a new release, power. If the job itself changed, thresholds and agents learn the new "
        "normal by themselves.",
    ),
    Alert(
        "IngeroSeveralAgents", "ingero_fleet_several_agents > 0", "5m", "warning",
        "Several agents report as one node of {{ $labels.cluster_id }}.",
        "`several_agents` of `/api/v1/stragglers` names the nodes. Stop all agents but one, or give them other node "
        "or cluster ids. Their verdicts mix the agents, so no such node is tainted, drained or released.",
    ),
    Alert(
        "IngeroCoverageLow", "ingero_fleet_coverage_low == 1", "5m", "warning",
        "Fewer nodes of {{ $labels.cluster_id }} report than expected.",
        "Compare `/api/v1/nodes` with the nodes that should report; read the logs of agents that are "
        "missing. If the cluster became "
        "smaller, the expectation follows within an hour, or set `spec.fleet.quorum.expectedNodes` "
        "(`processors.ingero.quorum.expected_nodes`).",
    ),
    Alert(
        "IngeroNoQuorum",
        "ingero:active_nodes:sum > 0 unless on (cluster_id) count by (cluster_id) (ingero_fleet_threshold)",
        "10m", "warning",
        "{{ $labels.cluster_id }} has too few active nodes for a threshold.",
        "No node is judged by the threshold. Lower `processors.ingero.quorum.statistical_min`, or compare "
        "over more nodes by a shorter "
        "`processors.ingero.cohort.by`.",
    ),
    Alert(
        "IngeroGpusWithoutRate", "ingero_fleet_gpus_without_rate > 0", "1h", "info",
        "{{ $value }} GPUs ({{ $labels.gpu_model }}, {{ $labels.provider }}) have no rate and are in no cost.",
        "Add the model to the table of `processors.cost.rates_file` under the exact name that nvidia-smi "
        "prints, or set "
        "`processors.cost.default_provider`.",
    ),
    Alert(
        "IngeroPointsRejected", "sum by (reason) (rate(ingero_fleet_rejected_points_total[10m])) > 0",
        "15m", "warning",
        "Fleet rejects points: {{ $labels.reason }}.",
        "The reason says what is wrong with what agents send, or which limit of `processors.ingero` was reached.",
    ),
    Alert(
        "IngeroTicksFail",
        "increase(ingero_fleet_failed_ticks_total[10m]) > 0"
        " or increase(ingero_fleet_late_ticks_total[10m]) > 3",
        "5m", "critical",
        "Fleet does not compute its statistics in time.",
        "Fleet's log names the failure. Late ticks mean too little processor time, or too many nodes for "
        "the push interval.",
    ),
    Alert(
        "IngeroExportDropped",
        'sum by (exporter, outcome) (rate(ingero_fleet_exported_pushes_total{outcome=~"dropped_.*"}[10m])) > 0',
        "10m", "warning",
        "Pushes to {{ $labels.exporter }} are lost ({{ $labels.outcome }}).",
        "`dropped_queue_full` and `dropped_elapsed`: the receiver is unreachable or too slow; "
        "`dropped_permanent`: the receiver refuses the data.",
    ),
    Alert(
        "IngeroOperatorAbsent", "absent(ingero_operator_leading == 1)", "5m", "critical",
        "No replica of the operator leads.",
        "Taints are neither set nor removed, and nothing is reconciled. `kubectl -n ingero-system get pods` "
        "and `/readyz` of each replica say why: rights on the Lease, the API server, the image. Does Prometheus "
        "scrape the operator at all?",
    ),
    Alert(
        "IngeroOperatorFailing", "ingero_operator_failing > 0", "15m", "warning",
        "{{ $value }} resources cannot be reconciled.",
        "`kubectl get ingero -A` names them in STATUS, their conditions say why.",
    ),
    Alert(
        "IngeroOperatorStuck",
        "ingero_operator_queue_length > 0 and rate(ingero_operator_reconciles_total[10m]) == 0",
        "10m", "critical",
        "The operator has resources in its queue and reconciles none.",
        "Check its log and the latency of the API server; a restart of the leader is safe.",
    ),
    Alert(
        "IngeroNodePolicyMissing", "ingero_operator_node_policy_missing == 1", "1m", "warning",
        "No admission policy limits what the operator may write to nodes.",
        "No node is tainted meanwhile. Apply `manifests/base` again, for the namespace and account that the operator "
        "runs with.",
    ),
    Alert(
        "IngeroFleetsUnreachable",
        "increase(ingero_operator_fleet_poll_failures_total[10m])"
        " > 0.5 * increase(ingero_operator_fleet_polls_total[10m])",
        "10m", "warning",
        "Most polls of Fleet by the operator fail.",
        "Without evidence no node is tainted, and taints are removed only when they expire. `QuorumMet` of each "
        "FleetCluster has Fleet's message; check Fleet's pods and the NetworkPolicies for port 8080.",
    ),
    Alert(
        "IngeroTaintRecordsLost", "increase(ingero_operator_audit_events_dropped_total[1h]) > 0", "1m", "warning",
        "Records of taints reached no Fleet and are lost.",
        "The nodes, their Events and `status.taints.history` have them. The operator cannot connect to Fleet's "
        "port 4318, or Fleet was unreachable for 15 minutes.",
    ),
    Alert(
        "IngeroTaintBudgetUsed", "ingero_operator_tainted_nodes >= ingero_operator_taint_budget > 0", "1h", "info",
        "{{ $labels.namespace }}/{{ $labels.name }} has tainted as many nodes as its budget allows.",
        "Further stragglers stay in service. Repair or replace the tainted nodes, or raise `spec.taints.budget`.",
    ),
    Alert(
        "IngeroStoreNotEncrypted", "ingero_operator_encryption_level == 0", "30m", "warning",
        "EchoStore {{ $labels.namespace }}/{{ $labels.name }} waits for an encrypted volume.",
        "`EncryptionVerified` of the store says what its class or volume lacks.",
    ),
    Alert(
        "IngeroSealingBehind", "ingero_echo_sealing_lag_seconds > 900", "5m", "warning",
        "Echo at {{ $labels.instance }} has not sealed what arrived in the last {{ $value | humanizeDuration }}.",
        "Nothing is lost, but the database grows. If `ingero_echo_seal_failures_total` grows, the log says why as "
        "`seal_failed`: mostly the catalog or the object storage. If `ingero_echo_shard_taken` is 1, give this "
        "database another `table.shard`. Otherwise the processor is too busy: raise its limit, or add a shard. "
        "Raise the 900 seconds where `table.every` is above five minutes.",
    ),
    Alert(
        "IngeroStreamUnreadable", "ingero_echo_source_away_seconds > 300", "5m", "warning",
        "Echo at {{ $labels.instance }} has not read its stream for {{ $value | humanizeDuration }}.",
        "Nothing is lost while the stream has room (`source.nats.max_bytes`); then Fleets fill their queues. The log "
        "says why: mostly NATS is away, or refuses the credentials.",
    ),
)  # fmt: skip


def groups() -> list[dict[str, Any]]:
    """Recording rules and alerts as Prometheus groups them."""
    return [
        {
            "name": "ingero.recording",
            "rules": [{"record": name, "expr": expression} for name, expression in RECORDING.items()],
        },
        {
            "name": "ingero.alerts",
            "rules": [
                {
                    "alert": alert.name,
                    "expr": alert.expression,
                    "for": alert.after,
                    "labels": {"severity": alert.severity},
                    "annotations": {"summary": alert.summary, "description": alert.runbook},
                }
                for alert in ALERTS
            ],
        },
    ]


def rules() -> str:
    """manifests/monitoring/ingero.rules.yaml, for Prometheus' `rule_files`."""
    return "# Printed by `make generate`; edit scripts/monitoring.py.\n" + yaml.safe_dump(
        {"groups": groups()}, sort_keys=False, width=110, allow_unicode=True
    )


def runbook() -> str:
    """docs/alerts.md"""
    lines = [
        "# Alerts",
        "<!-- Printed by `make generate`; edit scripts/monitoring.py. -->",
        "",
        "`manifests/monitoring/ingero.rules.yaml` goes into Prometheus' `rule_files`; scrape Fleet's "
        "ports 9090 (findings) and 8888",
        "(Fleet itself), and the operator's port 8080. `manifests/monitoring/grafana-dashboard.json` is imported in "
        "Grafana, which asks for the data source.",
        "Where the Prometheus operator runs, `kubectl apply -k manifests/monitoring/prometheus-operator` brings the "
        "rules and a ServiceMonitor of",
        "the operator instead; those of Fleet and Echo are made with them. On Kubernetes settings named here as "
        "`processors.…` are set in the FleetCluster:",
        "by their field under `spec.fleet`, or by `spec.fleet.settings`.",
    ]
    for alert in ALERTS:
        lines += [
            "", f"## {alert.name}", "", f"{alert.severity}, after {alert.after}: `{alert.expression}`", "",
            alert.runbook,
        ]  # fmt: skip
    lines += ["", "## Recording rules", "", "| name | expression |", "| --- | --- |"]
    lines += [f"| `{name}` | `{expression}` |" for name, expression in RECORDING.items()]
    return "\n".join([*lines, ""])


CLUSTER = 'cluster_id=~"$cluster"'

PANELS: tuple[tuple[str, str, str, int, tuple[tuple[str, str], ...]], ...] = (
    ("Stragglers", "stat", "short", 6, ((f"sum(ingero:accused_nodes:count{{{CLUSTER}}}) or vector(0)", ""),)),
    ("Active nodes", "stat", "short", 6, ((f"sum(ingero:active_nodes:sum{{{CLUSTER}}})", ""),)),
    ("Waiting, share of cost", "stat", "percentunit", 6, ((f"max(ingero:waiting:ratio{{{CLUSTER}}})", ""),)),
    ("Cost of waiting per hour", "stat", "short", 6,
     ((f"sum by (currency) (ingero:waiting_cost_per_hour:sum{{{CLUSTER}}})", "{{currency}}"),)),
    ("Scores", "heatmap", "short", 24, ((f"ingero_node_health_score{{{CLUSTER}}}", "{{node_id}}"),)),
    ("Stragglers over time", "timeseries", "short", 12,
     ((f"ingero_fleet_straggler{{{CLUSTER}}}", "{{cluster_id}} {{node_id}}"),)),
    ("Median and threshold", "timeseries", "short", 12, (
        (f"ingero_fleet_median{{{CLUSTER}}}", "median {{cohort}}"),
        (f"ingero_fleet_threshold{{{CLUSTER}}}", "threshold {{cohort}}"),
    )),
    ("Peer lag of the latest ranks", "timeseries", "ms", 12,
     ((f"topk(20, ingero_fleet_collective_peer_lag_milliseconds{{{CLUSTER}}})", "{{comm}} {{rank}} {{node_id}}"),)),
    ("Time lost to one rank", "timeseries", "percentunit", 12,
     ((f"ingero_fleet_collective_culprit_share{{{CLUSTER}}}", "{{node_id}} rank {{rank}}"),)),
    ("Cost of waiting", "timeseries", "short", 12,
     ((f"ingero_fleet_waiting_cost_per_hour{{{CLUSTER}}}", "{{cluster_id}} {{job}} {{currency}}/h"),)),
    ("Most expensive stragglers", "table", "short", 12,
     ((f"topk(20, increase(ingero_fleet_straggler_cost_total{{{CLUSTER}}}[$__range]))", ""),)),
    ("Coverage", "timeseries", "percentunit", 8, ((f"ingero:coverage:ratio{{{CLUSTER}}}", "{{cluster_id}}"),)),
    ("Pushes per second", "timeseries", "reqps", 8, (("ingero:pushes:rate5m", "{{signal}}"),)),
    ("Points rejected", "timeseries", "cps", 8, (("ingero:rejected_points:rate5m", "{{reason}}"),)),
)  # fmt: skip
"""Title, kind, unit, width of 24, and (expression, legend) of every panel, in reading order."""


def dashboard() -> str:
    """manifests/monitoring/grafana-dashboard.json"""
    panels: list[dict[str, Any]] = []
    across = down = 0
    for number, (title, kind, unit, width, targets) in enumerate(PANELS, 1):
        height = 4 if kind == "stat" else 8
        if across + width > 24:
            across, down = 0, down + int(panels[-1]["gridPos"]["h"])
        panels.append(
            {
                "id": number,
                "title": title,
                "type": kind,
                "datasource": {"type": "prometheus", "uid": "${source}"},
                "gridPos": {"x": across, "y": down, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "options": {"calculate": True} if kind == "heatmap" else {},
                "targets": [
                    {
                        "refId": chr(ord("A") + place),
                        "expr": expression,
                        "legendFormat": legend or "__auto",
                        "instant": kind == "table",
                        **({"format": "table"} if kind == "table" else {}),
                    }
                    for place, (expression, legend) in enumerate(targets)
                ],
            }
        )
        across += width
    variables = [
        {"name": "source", "label": "data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "cluster",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "query": "label_values(ingero_fleet_active_nodes, cluster_id)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
        },
    ]
    return (
        json.dumps(
            {
                "uid": "ingero-fleet",
                "title": "ingero Fleet",
                "tags": ["ingero"],
                "schemaVersion": 39,
                "editable": True,
                "refresh": "10s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {"list": variables},
                "annotations": {"list": []},
                "panels": panels,
            },
            indent=1,
        )
        + "\n"
    )


DOCUMENTS = {
    "manifests/monitoring/ingero.rules.yaml": rules,
    "manifests/monitoring/grafana-dashboard.json": dashboard,
    "docs/alerts.md": runbook,
}
