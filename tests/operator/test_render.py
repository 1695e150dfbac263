"""What the operator makes of a resource, and that other components understand it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ingero_agent.cli import main as agent_command
from ingero_agent.settings import AgentSettings
from ingero_agent.trace.capabilities import Facts
from ingero_agent.trace.settings import TraceSettings
from ingero_contract.node_problems import CHECK_CONTAINER, TERMINATION_LOG, TraceProblem, parse_problems
from ingero_fleet.settings import FleetConfig
from ingero_kit.settings import load
from ingero_operator.api.v1alpha1 import OWN_FIELDS, EchoStoreSpec, FleetClusterSpec, Setting
from ingero_operator.render import agents, desired, echo, fleet, receivers
from ingero_operator.render.common import AGENT_API_PORT, Owner, Platform
from ingero_operator.settings import OperatorConfig
from ingero_operator.workloads import route_created, stuck
from ingero_sink.cli import main as sink_command
from ingero_sink.settings import SinkSettings
from scripts.generate import rows
from scripts.monitoring import ALERTS

OWNER = Owner(kind="FleetCluster", namespace="ml", name="prod", uid="u-1")
STORE = Owner(kind="EchoStore", namespace="ml", name="prod", uid="u-2")

PLATFORM = Platform(service_monitors=True)
AROUND = fleet.FleetInputs()
FULL = {
    "clusterId": "prod-1",
    "tokenSecret": {"name": "fleet-token"},
    "tlsSecret": "fleet-tls",
    "fleet": {
        "forward": {"echoStore": "prod", "tokenSecret": {"name": "echo-token"}},
        "cost": {
            "rates": {"name": "prices", "key": "rates.yaml"},
            "providers": {"name": "prices", "key": "rules.yaml"},
        },
    },
    "agents": {
        "jobId": "job-7",
        "worldSize": 16,
        "priorityClassName": "gpu-critical",
        "trace": {"sysAdmin": True},
        "api": {
            "tokenSecret": {"name": "humans"},
            "tlsSecret": "agent-tls",
            "peers": [{"labels": {"app": "assistant"}}],
        },
    },
}


def spec(**change: Any) -> FleetClusterSpec:
    return FleetClusterSpec.model_validate({"clusterId": "prod-1", **change})


def children(**change: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = desired.of_fleet_cluster(OWNER, spec(**change), PLATFORM, AROUND)
    return {(child["kind"], child["metadata"]["name"]): child for child in found}


def pod(child: dict[str, Any]) -> dict[str, Any]:
    return child["spec"]["template"]["spec"]


def test_a_fleet_cluster_becomes_these_children() -> None:
    assert list(children()) == [
        ("ServiceAccount", "prod-fleet"), ("ServiceAccount", "prod-trace"), ("ServiceAccount", "prod-push"),
        ("ConfigMap", "prod-fleet"), ("Service", "prod-fleet"), ("Service", "prod-push-pods"),
        ("NetworkPolicy", "prod-fleet"), ("NetworkPolicy", "prod-trace"), ("NetworkPolicy", "prod-push"),
        ("Deployment", "prod-fleet"), ("DaemonSet", "prod-trace"), ("DaemonSet", "prod-push"),
        ("PodDisruptionBudget", "prod-fleet"), ("ServiceMonitor", "prod-fleet"), ("ServiceMonitor", "prod-push"),
    ]  # fmt: skip


def test_images_come_from_the_registry_of_the_settings() -> None:
    platform = Platform(config=OperatorConfig(version="1.2.3", image_registry="registry.example.com/team/"))

    assert platform.image_of("fleet", None, None) == "registry.example.com/team/ingero/fleet:1.2.3"
    assert platform.image_of("fleet", None, "mine:7") == "mine:7"


def test_an_echo_store_becomes_these_children() -> None:
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})

    found = desired.of_echo_store(STORE, store, PLATFORM)

    assert [(child["kind"], child["metadata"]["name"]) for child in found] == [
        ("ServiceAccount", "prod-echo"), ("ConfigMap", "prod-echo"), ("Service", "prod-echo"),
        ("Service", "prod-echo-pods"), ("NetworkPolicy", "prod-echo"), ("StatefulSet", "prod-echo"),
        ("PodDisruptionBudget", "prod-echo"), ("ServiceMonitor", "prod-echo"),
    ]  # fmt: skip
    budget, workload = found[-2]["spec"], found[-3]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": workload["selector"]}


def test_an_ingress_reaches_the_api_of_echo_and_nothing_else() -> None:
    wanted: dict[str, Any] = {
        "host": "echo.example.com", "tlsSecret": "public-tls", "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
        "namespace": {"kubernetes.io/metadata.name": "edge"},
    }  # fmt: skip
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "ingress": wanted})

    found = {child["kind"]: child for child in desired.of_echo_store(STORE, store, PLATFORM)}

    assert found["Ingress"]["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"hosts": ["echo.example.com"], "secretName": "public-tls"}],
        "rules": [
            {
                "host": "echo.example.com",
                "http": {
                    "paths": [
                        {
                            "path": "/",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "prod-echo", "port": {"name": "api"}}},
                        }
                    ]
                },
            }
        ],
    }
    assert found["Ingress"]["metadata"]["annotations"].items() >= wanted["annotations"].items()
    edge = [{"namespaceSelector": {"matchLabels": wanted["namespace"]}}]
    (rule,) = [rule for rule in found["NetworkPolicy"]["spec"]["ingress"] if rule["from"] == edge]
    assert rule["ports"] == [{"port": 8080, "protocol": "TCP"}]


def test_an_ingress_reaches_page_and_api_of_fleet_by_token_and_tls(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {
        "host": "fleet.example.com", "tlsSecret": "public-tls", "namespace": {"kubernetes.io/metadata.name": "edge"}
    }  # fmt: skip
    found = children(tokenSecret={"name": "t"}, tlsSecret="tls", fleet={"ingress": wanted})

    (rule,) = found["Ingress", "prod-fleet"]["spec"]["rules"]
    ports = {item["path"]: item["backend"]["service"]["port"]["name"] for item in rule["http"]["paths"]}
    assert ports == {
        "/api/v1/threshold": "api", "/api/v1/stragglers": "api", "/api/v1/verdicts": "api", "/api/v1/cost": "api",
        "/": "page",
    }  # fmt: skip
    service = {port["name"]: port["port"] for port in found["Service", "prod-fleet"]["spec"]["ports"]}
    assert (service["api"], service["page"]) == (8080, 8081)
    edge = [{"namespaceSelector": {"matchLabels": wanted["namespace"]}}]
    (rule,) = [
        rule for rule in found["NetworkPolicy", "prod-fleet"]["spec"]["ingress"] if rule["from"] == edge
    ]  # fmt: skip
    assert [port["port"] for port in rule["ports"]] == [8080, 8081]
    file = tmp_path / "fleet.yaml"
    file.write_text(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"])
    config = load(FleetConfig, file=file, prefix="INGERO_FLEET_", flags={}).extensions.ingero_threshold
    assert config.admin_endpoint == "0.0.0.0:8081" and config.admin_auth == config.auth and config.admin_tls
    without = children(tokenSecret={"name": "t"}, tlsSecret="tls")
    assert ("Ingress", "prod-fleet") not in without
    assert "page" not in {port["name"] for port in without["Service", "prod-fleet"]["spec"]["ports"]}


GATEWAY: dict[str, Any] = {
    "hostname": "fleet.example.com", "parentRefs": [{"name": "public", "namespace": "edge", "sectionName": "https"}],
    "namespace": {"kubernetes.io/metadata.name": "edge"},
}  # fmt: skip
ROUTES = Platform(http_routes=True)


def test_an_http_route_reaches_page_and_api_of_fleet_by_token_and_tls() -> None:
    wanted = spec(tokenSecret={"name": "t"}, tlsSecret="tls", fleet={"gateway": GATEWAY})
    found = {child["kind"]: child for child in desired.of_fleet_cluster(OWNER, wanted, ROUTES, AROUND)}
    policies = [
        child for child in desired.of_fleet_cluster(OWNER, wanted, ROUTES, AROUND) if child["kind"] == "NetworkPolicy"
    ]  # fmt: skip

    route = found["HTTPRoute"]
    paths = ("/api/v1/threshold", "/api/v1/stragglers", "/api/v1/verdicts", "/api/v1/cost")
    backend = {"group": "", "kind": "Service", "name": "prod-fleet", "weight": 1}
    assert (route["apiVersion"], route["metadata"]["name"]) == ("gateway.networking.k8s.io/v1", "prod-fleet")
    assert route["spec"] == {
        "parentRefs": [
            {
                "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public", "namespace": "edge",
                "sectionName": "https",
            }
        ],
        "hostnames": ["fleet.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": path}} for path in paths],
                "backendRefs": [{**backend, "port": 8080}],
            },
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{**backend, "port": 8081}],
            },
        ],
    }  # fmt: skip
    (fleet_policy,) = [policy for policy in policies if policy["metadata"]["name"] == "prod-fleet"]
    edge = [{"namespaceSelector": {"matchLabels": GATEWAY["namespace"]}}]
    (rule,) = [rule for rule in fleet_policy["spec"]["ingress"] if rule["from"] == edge]
    assert [port["port"] for port in rule["ports"]] == [8080, 8081]
    assert "Ingress" not in found


def test_an_http_route_reaches_the_api_of_echo_from_a_gateway_of_its_namespace() -> None:
    wanted = {**GATEWAY, "parentRefs": [{"name": "public"}]}
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "gateway": wanted})

    found = {child["kind"]: child for child in desired.of_echo_store(STORE, store, ROUTES)}

    (rule,) = found["HTTPRoute"]["spec"]["rules"]
    assert (rule["backendRefs"][0]["name"], rule["backendRefs"][0]["port"]) == ("prod-echo", 8080)
    (parent,) = found["HTTPRoute"]["spec"]["parentRefs"]
    assert parent["namespace"] == STORE.namespace and "sectionName" not in parent


def test_without_the_gateway_api_there_is_no_route_and_a_condition_says_what_helps() -> None:
    wanted = spec(tokenSecret={"name": "t"}, tlsSecret="tls", fleet={"gateway": GATEWAY})

    kinds = {child["kind"] for child in desired.of_fleet_cluster(OWNER, wanted, PLATFORM, AROUND)}
    missing = route_created(wanted.fleet.gateway, PLATFORM, "spec.fleet")
    served = route_created(wanted.fleet.gateway, ROUTES, "spec.fleet")

    assert "HTTPRoute" not in kinds
    assert missing is not None and (missing.status, missing.reason) == ("False", "GatewayAPIMissing")
    assert "spec.fleet.ingress" in missing.message and stuck([missing]) == []
    assert served is not None and served.holds
    assert route_created(None, PLATFORM, "spec") is None


def test_what_is_not_wanted_is_not_made() -> None:
    found = children(
        agents={"source": "Stub"}, network={"enabled": False}, serviceMonitors={"enabled": False}
    )  # fmt: skip

    assert {kind for kind, _ in found} == {
        "ServiceAccount", "ConfigMap", "Service", "Deployment", "DaemonSet", "PodDisruptionBudget"
    }  # fmt: skip
    assert ("DaemonSet", "prod-trace") not in found


@pytest.mark.parametrize("change", [{}, FULL], ids=["smallest", "full"])
def test_fleet_accepts_its_settings_file(change: dict[str, Any]) -> None:
    text = children(**change)["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"]

    config = FleetConfig.model_validate(yaml.safe_load(text))

    assert config.receivers.otlp.protocols.http is not None
    assert config.receivers.otlp.protocols.http.endpoint == "0.0.0.0:4318"
    assert (config.receivers.otlp.protocols.http.auth.bearer_token_file is not None) is bool(change)
    assert config.processors.ingero.quorum.coverage_fraction == 0.8


LEAST = {
    "clusterId": "1",
    "fleet": {
        "pushInterval": "1s", "quorum": {"statisticalMin": 2, "coveragePercent": 1},
        "threshold": {"k": 1e-9, "minBand": 0}, "maxNodes": 1, "forward": {"endpoint": "[::1]:1"},
        "collectives": {"leastShare": 0, "timeTolerance": "1s"},
    },
    "agents": {"workloadType": "", "jobId": "0"},
}  # fmt: skip
MOST = {
    "clusterId": "A" + "._-" * 20 + "9",
    "fleet": {
        "pushInterval": "9999m", "quorum": {"statisticalMin": 100_000, "coveragePercent": 100},
        "threshold": {"k": 20, "minBand": 0.5}, "maxNodes": 1_000_000, "forward": {"endpoint": "a.b:65535"},
        "cost": {"defaultProvider": "X" * 63},
        "collectives": {"actionable": True, "leastShare": 0.999, "timeTolerance": "9999m"},
    },
    "agents": {"workloadType": "w" * 63, "jobId": "1e3"},
}  # fmt: skip


@pytest.mark.parametrize("change", [LEAST, MOST], ids=["least", "most"])
def test_what_the_schema_admits_fleet_and_agents_accept(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remember(_: AgentSettings) -> None:
        """Take the settings."""

    monkeypatch.setattr("ingero_agent.app.fleet_push", remember)
    found = children(**change)
    args = pod(found["DaemonSet", "prod-push"])["containers"][0]["args"]

    FleetConfig.model_validate(yaml.safe_load(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"]))
    done = CliRunner().invoke(agent_command, [arg.replace("$(NODE_NAME)", "gpu-1") for arg in args])
    assert done.exit_code == 0, done.output


def test_push_is_ready_when_its_pushes_reach_fleet() -> None:
    container = pod(children()["DaemonSet", "prod-push"])["containers"][0]
    (listen,) = (arg for arg in container["args"] if arg.startswith("--metrics-listen="))
    (port,) = container["ports"]

    assert listen == f"--metrics-listen=:{port['containerPort']}"
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {item["port"] for item in paths.values()} == {port["name"]}
    assert [item["path"] for item in paths.values()] == ["/healthz", "/readyz", "/healthz"]


@pytest.mark.parametrize("change", [{}, FULL, {"agents": {"source": "Stub"}}], ids=["smallest", "full", "stub"])
def test_the_agent_accepts_its_arguments(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[AgentSettings] = []

    async def remember(config: AgentSettings) -> None:
        taken.append(config)

    monkeypatch.setattr("ingero_agent.app.fleet_push", remember)
    args = pod(children(**change)["DaemonSet", "prod-push"])["containers"][0]["args"]

    done = CliRunner().invoke(agent_command, [arg.replace("$(NODE_NAME)", "gpu-1") for arg in args])

    assert done.exit_code == 0, done.output
    assert (taken[0].fleet_cluster_id, taken[0].fleet_node_id) == ("prod-1", "gpu-1")
    assert taken[0].fleet_endpoint == "prod-fleet.ml.svc:4318"
    assert (taken[0].fleet_world_size, taken[0].fleet_node_rank) == (16 if change is FULL else 0, None)


def test_the_tracer_and_the_sink_accept_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[TraceSettings | SinkSettings] = []
    monkeypatch.setattr("ingero_agent.trace.app.run", taken.append)
    monkeypatch.setattr("ingero_sink.app.run", taken.append)
    found = children()
    push = pod(found["DaemonSet", "prod-push"])
    (sink,) = (one for one in [*push.get("initContainers", []), *push["containers"]] if one["name"] == "sink")

    for command, container in (
        (agent_command, pod(found["DaemonSet", "prod-trace"])["containers"][0]),
        (sink_command, sink),
    ):
        done = CliRunner().invoke(command, container["args"])
        assert done.exit_code == 0, done.output

    trace, listener = taken
    assert isinstance(trace, TraceSettings) and isinstance(listener, SinkSettings)
    assert trace.prometheus.startswith(":") and trace.db.name == "ingero.db"
    assert (trace.otlp, trace.otlp_insecure) == ("prod-fleet.ml.svc:4318", True)
    assert [path.name for path in listener.socket_paths] == ["remediate.sock"]


def test_a_pod_says_what_its_node_lacks_before_it_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_agent.trace.check.collect_facts", lambda _: Facts(release="6.8.0"))
    trace = pod(children()["DaemonSet", "prod-trace"])
    (check,), (tracer,) = trace["initContainers"], trace["containers"]
    file = tmp_path / "log"

    done = CliRunner().invoke(agent_command, [arg.replace(TERMINATION_LOG, str(file)) for arg in check["args"]])

    assert (done.exit_code, check["name"]) == (0, CHECK_CONTAINER)
    assert set(parse_problems(file.read_text())) == {TraceProblem.NO_BTF, TraceProblem.PRIVILEGES_REFUSED}
    same = ("image", "securityContext", "volumeMounts", "env", "resources")
    assert {key: check[key] for key in same} == {key: tracer[key] for key in same}


def test_a_node_answers_only_to_named_pods_with_tls_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[AgentSettings] = []

    async def remember(config: AgentSettings) -> None:
        taken.append(config)

    monkeypatch.setattr("ingero_agent.app.fleet_push", remember)
    plain, found = children(), children(**FULL)
    push = pod(found["DaemonSet", "prod-push"])
    (agent,) = (one for one in push["containers"] if one["name"] == "push")
    assert CliRunner().invoke(agent_command, agent["args"]).exit_code == 0

    (config,) = taken
    files = [config.api_tls_cert, config.api_tls_key, config.explain_token_file]
    mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert config.mcp and {str(file.parent) for file in files if file} <= mounted
    assert config.api_listen == f":{AGENT_API_PORT}"
    assert {"name": "api", "containerPort": AGENT_API_PORT, "protocol": "TCP"} in agent["ports"]
    assert "api" in {port["name"] for port in found["Service", "prod-push-pods"]["spec"]["ports"]}

    def admitted(children: dict[tuple[str, str], dict[str, Any]]) -> list[Any]:
        rules = children["NetworkPolicy", "prod-push"]["spec"]["ingress"]
        return [rule["from"] for rule in rules if AGENT_API_PORT in {port["port"] for port in rule["ports"]}]

    assert admitted(found) == [[{"podSelector": {"matchLabels": {"app": "assistant"}}}]]
    assert admitted(plain) == []
    assert not [arg for arg in pod(plain["DaemonSet", "prod-push"])["containers"][0]["args"] if "api" in arg]


def test_tracer_and_push_say_the_same_of_their_node_and_trust_the_same_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    async def remember(config: AgentSettings) -> None:
        taken.append(config)

    monkeypatch.setattr("ingero_agent.trace.app.run", taken.append)
    monkeypatch.setattr("ingero_agent.app.fleet_push", remember)
    found = children(**FULL)
    for name, which in (("prod-trace", "trace"), ("prod-push", "push")):
        (container,) = (one for one in pod(found["DaemonSet", name])["containers"] if one["name"] == which)
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
        assert CliRunner().invoke(agent_command, container["args"]).exit_code == 0

    trace, push = taken
    assert (trace.cluster, trace.node, trace.job_id) == (
        push.fleet_cluster_id, push.fleet_node_id, push.fleet_job_id
    )  # fmt: skip
    assert (trace.otlp, trace.otlp_tls_ca, trace.otlp_token_file) == (
        push.fleet_endpoint, push.fleet_tls_ca, push.fleet_token_file
    )  # fmt: skip


def test_the_tracer_may_reach_fleet_and_fleet_lets_it_in() -> None:
    found = children()
    egress = found["NetworkPolicy", "prod-trace"]["spec"]["egress"]
    ingress = found["NetworkPolicy", "prod-fleet"]["spec"]["ingress"]
    labels = found["DaemonSet", "prod-trace"]["spec"]["template"]["metadata"]["labels"]

    (to_fleet,) = (rule for rule in egress if [port["port"] for port in rule["ports"]] == [4318])
    assert to_fleet["to"][0]["podSelector"]["matchLabels"].items() <= (
        found["Deployment", "prod-fleet"]["spec"]["template"]["metadata"]["labels"].items()
    )
    (admitted,) = (
        rule for rule in ingress
        if any(peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels.items()
               for peer in rule["from"])
    )  # fmt: skip
    assert [port["port"] for port in admitted["ports"]] == [4318]


@pytest.mark.parametrize("more", [{}, {"receivers": {}}], ids=["fleet", "receivers"])
def test_pods_of_jobs_may_push_where_the_resource_admits_them_and_ask_nothing(more: dict[str, Any]) -> None:
    log = {"nats": {"servers": ["nats:4222"], "prefix": "prod"}}
    peers = [{"namespace": "train", "labels": {"app": "job"}}, {"labels": {"inspector": "on"}}]
    found = children(fleet={"peers": peers, "log": log, **more})
    policies = [name for kind, name in found if kind == "NetworkPolicy" and name in ("prod-fleet", "prod-receivers")]
    admitted = [
        {"podSelector": {"matchLabels": {"app": "job"}},
         "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "train"}}},
        {"podSelector": {"matchLabels": {"inspector": "on"}}},
    ]  # fmt: skip

    assert len(policies) == 1 + len(more)
    for name in policies:
        rules = found["NetworkPolicy", name]["spec"]["ingress"]
        (rule,) = (rule for rule in rules if rule["from"] == admitted)
        assert [port["port"] for port in rule["ports"]] == [4317, 4318]


def test_what_collectives_may_lead_to_is_set_in_the_resource(tmp_path: Path) -> None:
    wanted = {"actionable": True, "leastShare": 0.01, "timeTolerance": "3s"}
    file = tmp_path / "fleet.yaml"
    text = children(fleet={"collectives": wanted, "quorum": {"expectedNodes": 64}})["ConfigMap", "prod-fleet"]
    file.write_text(text["data"]["fleet.yaml"])

    config = load(FleetConfig, file=file, prefix="INGERO_FLEET_", flags={}).processors

    assert (config.nccl.actionable, config.nccl.share, config.nccl.time_tolerance) == (True, 0.01, 3.0)
    assert config.ingero.quorum.expected_nodes == 64


@pytest.mark.parametrize("size", [None, "1Gi"])
def test_fleet_keeps_what_it_learnt_where_it_may_write(size: str | None, tmp_path: Path) -> None:
    found = children(fleet={"snapshots": {"size": size, "className": "fast"}} if size else {})
    deployment = found["Deployment", "prod-fleet"]
    file = tmp_path / "fleet.yaml"
    file.write_text(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"])

    snapshot = load(FleetConfig, file=file, prefix="INGERO_FLEET_", flags={}).processors.ingero.detector.snapshot
    (container,) = pod(deployment)["containers"]
    (mount,) = (one for one in container["volumeMounts"] if str(snapshot).startswith(one["mountPath"] + "/"))
    (volume,) = (one for one in pod(deployment)["volumes"] if one["name"] == mount["name"])

    assert not mount.get("readOnly")
    claims = {name: child for (kind, name), child in found.items() if kind == "PersistentVolumeClaim"}
    if size:
        assert claims[volume["persistentVolumeClaim"]["claimName"]]["spec"]["storageClassName"] == "fast"
        # Two pods cannot share the volume, so a rolling update would never end.
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    else:
        assert not claims and "emptyDir" in volume


def test_only_tracing_has_privileges_and_no_more_than_it_needs() -> None:
    found = children()
    trace = pod(found["DaemonSet", "prod-trace"])
    context = trace["containers"][0]["securityContext"]

    assert trace["hostPID"] is True and "hostNetwork" not in trace
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["capabilities"] == {"drop": ["ALL"], "add": list(agents.CAPABILITIES)}
    assert "SYS_ADMIN" not in agents.CAPABILITIES
    for kind, name in [("DaemonSet", "prod-push"), ("Deployment", "prod-fleet")]:
        other = pod(found[kind, name])
        assert not {"hostPID", "hostNetwork", "hostIPC"} & set(other)
        assert other["securityContext"]["runAsNonRoot"] is True
        for container in [*other["containers"], *other.get("initContainers", [])]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("change", [{}, FULL], ids=["smallest", "full"])
def test_no_pod_gets_a_token_for_the_api_server(change: dict[str, Any]) -> None:
    for (kind, _), child in children(**change).items():
        if kind in ("Deployment", "DaemonSet"):
            assert pod(child)["automountServiceAccountToken"] is False
        if kind == "ServiceAccount":
            assert child["automountServiceAccountToken"] is False


def test_no_taint_of_the_operator_keeps_its_own_pods_away() -> None:
    """A claim may tie a pod to the tainted node, and without Fleet no node is ever released."""
    own = {"key": "ingero.io/straggler", "operator": "Exists"}
    other = {"key": "team", "operator": "Equal", "value": "ml"}
    log = {"nats": {"servers": ["nats:4222"], "prefix": "prod"}}
    fleet_cluster = children(
        fleet={"tolerations": [other], "log": log, "receivers": {}}, agents={"tolerations": [other]}
    )
    store = EchoStoreSpec.model_validate({"tokenSecret": {"name": "t"}, "tlsSecret": "t", "tolerations": [other]})
    made = [*fleet_cluster.values(), *desired.of_echo_store(STORE, store, PLATFORM)]
    pods = {
        f"{child['kind']} {child['metadata']['name']}": pod(child)["tolerations"]
        for child in made
        if child["kind"] in ("Deployment", "DaemonSet", "StatefulSet")
    }

    assert len(pods) == 5
    assert [name for name, found in pods.items() if own not in found or other not in found] == []
    assert own in pod(children()["Deployment", "prod-fleet"])["tolerations"]


def test_the_sink_is_a_native_sidecar_where_the_server_knows_them() -> None:
    native = pod(agents.push(OWNER, spec(), Platform()))
    plain = pod(agents.push(OWNER, spec(), Platform(native_sidecars=False)))

    assert [(c["name"], c["restartPolicy"]) for c in native["initContainers"]] == [("sink", "Always")]
    assert [c["name"] for c in plain["containers"]] == ["push", "sink"] and "initContainers" not in plain


def test_a_change_of_configuration_rolls_the_pods_and_nothing_else_does() -> None:
    def annotations(**change: Any) -> Any:
        return children(**change)["Deployment", "prod-fleet"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations() == annotations(taints={"mode": "NoSchedule"})
    assert annotations() != annotations(fleet={"threshold": {"k": 3}})


def test_selectors_never_change() -> None:
    changed = children(**FULL, version="9.9.9")
    for key, child in children().items():
        if key[0] in ("Deployment", "DaemonSet"):
            assert child["spec"]["selector"] == changed[key]["spec"]["selector"]


def test_children_do_not_share_containers() -> None:
    first, second = children(), children()
    for child in first.values():
        child["metadata"]["labels"]["mine"] = "yes"
        child["metadata"]["annotations"]["mine"] = "yes"

    assert all("mine" not in json.dumps(child) for child in second.values())


def test_the_pod_of_a_store_cannot_start_without_the_proof() -> None:
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})
    template = pod(echo.stateful_set(STORE, store, PLATFORM, echo.EchoInputs(), 0, "x"))

    assert {"name": "volume-proof", "configMap": {"name": "prod-volume-proof", "optional": False}} in template[
        "volumes"
    ]
    assert any(mount["name"] == "volume-proof" for mount in template["containers"][0]["volumeMounts"])


def test_a_claim_names_its_class_and_outlives_its_store_unless_configured_otherwise() -> None:
    keep = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})
    drop = EchoStoreSpec.model_validate(
        {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "storage": {"onDelete": "Delete"}}
    )

    kept, dropped = echo.claim(STORE, keep, "fast", "50Gi"), echo.claim(STORE, drop, "fast", "50Gi")

    assert kept["spec"]["storageClassName"] == "fast" and "ownerReferences" not in kept["metadata"]
    assert dropped["metadata"]["ownerReferences"][0]["uid"] == "u-2"
    assert not {"dataSource", "dataSourceRef", "selector", "volumeName"} & set(kept["spec"])


def test_names_and_labels_fit_for_the_longest_name() -> None:
    long = Owner(kind="FleetCluster", namespace="ml", name="n" * 40, uid="u")

    for child in desired.of_fleet_cluster(long, spec(), PLATFORM, AROUND):
        assert len(child["metadata"]["name"]) <= 52
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())


def test_echo_accepts_its_settings_file() -> None:
    settings = pytest.importorskip("ingero_echo.settings")
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})

    config = settings.EchoConfig.model_validate(echo.config(STORE, store, echo.EchoInputs()))

    assert config.ingest.grpc_endpoint == "0.0.0.0:4317" and config.retention.age == 30 * 86400
    assert config.store.memory_limit_mb < 1024 and config.retention.size_mb < 50 * 1100


@pytest.mark.parametrize(
    ("capacity", "megabytes"),
    [(None, 15032), ("10Gi", 7516), ("20Gi", 15032), ("21474836480", 15032), ("1Ti", 15032)],
)
def test_echo_keeps_no_more_than_its_volume_has_by_now(capacity: str | None, megabytes: int) -> None:
    store = EchoStoreSpec.model_validate(
        {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "storage": {"size": "20Gi"}}
    )

    around = echo.EchoInputs(volumes={0: echo.VolumeInputs(capacity=capacity)})
    assert echo.config(STORE, store, around)["retention"]["size_mb"] == megabytes


def test_prices_are_mounted_where_fleet_reads_them() -> None:
    found = children(**FULL)
    config = FleetConfig.model_validate(yaml.safe_load(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"]))
    deployment = pod(found["Deployment", "prod-fleet"])
    mounts = {item["name"]: item["mountPath"] for item in deployment["containers"][0]["volumeMounts"]}
    files = {
        f"{mounts[item['name']]}/{entry['path']}"
        for item in deployment["volumes"]
        for entry in item.get("configMap", {}).get("items", [])
    }

    assert {str(config.processors.cost.rates_file), str(config.processors.cost.providers_file)} == files


@pytest.mark.parametrize(
    ("said", "seen", "provider"), [(None, "", ""), (None, "aws", "aws"), ("on-premise", "aws", "on-premise")]
)
def test_the_provider_is_the_one_that_is_said_or_the_one_that_the_nodes_agree_on(
    said: str | None, seen: str, provider: str
) -> None:
    cost = {"cost": {"defaultProvider": said}} if said else {}
    tree = fleet.config(OWNER, spec(fleet=cost), fleet.FleetInputs(provider=seen))

    assert FleetConfig.model_validate(tree).processors.cost.default_provider == provider


def test_agents_have_the_priority_that_the_resource_names_or_else_the_installation() -> None:
    installed = Platform(config=OperatorConfig(agent_priority_class="ingero-agents"))

    def priority(platform: Platform, **change: Any) -> Any:
        return pod(agents.push(OWNER, spec(**change), platform)).get("priorityClassName")

    assert priority(Platform()) is None
    assert priority(installed) == "ingero-agents"
    assert priority(installed, agents={"priorityClassName": "mine"}) == "mine"


def test_prometheus_is_configured_to_ask_an_echo_that_wants_tls_and_a_token() -> None:
    spec = {"tlsSecret": "tls", "tokenSecret": {"name": "t"}}
    own = {**spec, "serviceMonitors": {"tokenSecret": {"name": "scrape", "key": "metrics"}}}

    def endpoint(tree: dict[str, Any]) -> Any:
        found = desired.of_echo_store(STORE, EchoStoreSpec.model_validate(tree), PLATFORM)
        (monitor,) = (child for child in found if child["kind"] == "ServiceMonitor")
        return monitor["spec"]["endpoints"][0]

    assert (endpoint(spec)["scheme"], endpoint(spec)["path"]) == ("https", "/metrics")
    assert endpoint(spec)["tlsConfig"] == {
        "ca": {"secret": {"name": "tls", "key": "ca.crt"}}, "serverName": "prod-echo.ml.svc"
    }  # fmt: skip
    assert endpoint(spec)["authorization"]["credentials"] == {"name": "t", "key": "token"}
    assert endpoint(own)["authorization"]["credentials"] == {"name": "scrape", "key": "metrics"}


@pytest.mark.parametrize("change", [{}, FULL], ids=["smallest", "full"])
def test_the_operator_may_always_ask_fleet_and_report_taints(change: dict[str, Any]) -> None:
    rules = children(**change)["NetworkPolicy", "prod-fleet"]["spec"]["ingress"]
    (ours,) = (rule for rule in rules if "ingero-operator" in json.dumps(rule["from"]))

    assert [port["port"] for port in ours["ports"]] == [4318, 8080]


def test_health_of_fleet_is_in_its_service_with_tls_and_token_and_admitted_from_the_monitoring_namespace() -> None:
    found = children(**FULL)
    service = found["Service", "prod-fleet"]["spec"]["ports"]
    rules = found["NetworkPolicy", "prod-fleet"]["spec"]["ingress"]
    (monitoring,) = (
        rule for rule in rules if "namespaceSelector" in rule["from"][0] and "podSelector" not in rule["from"][0]
    )
    (container,) = found["Deployment", "prod-fleet"]["spec"]["template"]["spec"]["containers"]
    settings = yaml.safe_load(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"])

    assert {port["name"]: port["port"] for port in service}["health"] == 8088
    assert [port["port"] for port in monitoring["ports"]] == [9090, 8888, 8088]
    assert set(settings["extensions"]["healthee"]) == {"endpoint", "tls", "auth"}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["scheme"] == "HTTPS"


CONFINED: dict[str, Any] = {
    "seLinuxOptions": {"type": "spc_t"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": "ours"}
}  # fmt: skip


def test_selinux_and_apparmor_are_set_where_they_are_asked_for() -> None:
    agents_spec = {"trace": CONFINED, "push": CONFINED}
    found, plain = children(agents=agents_spec, fleet=CONFINED), children()
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}, **CONFINED})
    contexts = [
        pod(found["Deployment", "prod-fleet"])["securityContext"],
        pod(found["DaemonSet", "prod-push"])["securityContext"],
        pod(found["DaemonSet", "prod-trace"])["containers"][0]["securityContext"],
        pod(echo.stateful_set(STORE, store, PLATFORM, echo.EchoInputs(), 0, "x"))["securityContext"],
    ]

    for context in contexts:
        assert {key: context[key] for key in CONFINED} == CONFINED and "seccompProfile" in context
    assert not any(key in json.dumps(child) for child in plain.values() for key in CONFINED)


def test_every_pod_may_pull_with_the_secrets_of_the_operator_and_of_the_resource() -> None:
    platform = Platform(config=OperatorConfig(image_pull_secrets=("registry",)))
    own = [{"name": "mine"}, {"name": "registry"}]
    found = desired.of_fleet_cluster(OWNER, spec(imagePullSecrets=own), platform, AROUND)
    store = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "imagePullSecrets": own})
    found += desired.of_echo_store(STORE, store, platform)

    pods = [pod(child) for child in found if child["kind"] in ("Deployment", "DaemonSet", "StatefulSet")]
    assert [item["imagePullSecrets"] for item in pods] == [[{"name": "registry"}, {"name": "mine"}]] * 4
    assert all("imagePullSecrets" not in json.dumps(child) for child in children().values())


def fleet_of(tmp_path: Path, settings: dict[str, str]) -> FleetConfig:
    """What Fleet makes of the arguments that it is started with."""
    items = [{"name": f"processors.{name}", "value": value} for name, value in settings.items()]
    found = children(fleet={"settings": items})
    args = pod(found["Deployment", "prod-fleet"])["containers"][0]["args"]
    file = found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"]
    assert args[:2] == ["serve", "--config"] and args[3::2] == ["--set"] * len(items)
    (tmp := tmp_path / "fleet.yaml").write_text(file)
    return load(FleetConfig, file=tmp, assignments=args[4::2])


def test_fleet_accepts_settings_that_have_no_field(tmp_path: Path) -> None:
    config = fleet_of(tmp_path, {"ingero.cohort.by": "[workload_type]", "ingero.quorum.expected_nodes": "16"})

    assert config.processors.ingero.cohort.by == ("workload_type",)
    assert config.processors.ingero.quorum.expected_nodes == 16


def test_every_setting_that_an_alert_prescribes_can_be_set_in_a_resource() -> None:
    prescribed = {name for alert in ALERTS for name in re.findall(r"processors\.[a-z_.]*[a-z_]", alert.runbook)}
    named = {path for path in (row.split("`")[1] for row in rows(FleetConfig)) if path.startswith("processors.")}

    assert prescribed and prescribed <= named
    for name in prescribed - set(OWN_FIELDS):
        if name != "processors.ingero":
            Setting.model_validate({"name": name, "value": "1"})
    assert set(OWN_FIELDS) <= named


def test_new_prices_roll_fleet() -> None:
    def annotations(prices: str) -> Any:
        around = fleet.FleetInputs(file_digest=prices)
        found = desired.of_fleet_cluster(OWNER, spec(), PLATFORM, around)
        (deployment,) = (child for child in found if child["kind"] == "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    assert annotations("one") == annotations("one") != annotations("two")


LOG = {
    "nats": {
        "servers": ["nats-0.nats:4222", "tls://nats-1.nats:5222"],
        "prefix": "prod",
        "credentialsSecret": {"name": "nats-fleet", "key": "seed"},
        "tls": {"caSecret": "nats-tls", "clientSecret": "nats-client"},
    }
}


def test_replicas_share_a_log_and_compute_alike(tmp_path: Path) -> None:
    found = children(fleet={"replicas": 3, "log": LOG})

    deployment = found["Deployment", "prod-fleet"]
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert found["PodDisruptionBudget", "prod-fleet"]["spec"]["maxUnavailable"] == 1
    spread = {item["topologyKey"] for item in pod(deployment)["topologySpreadConstraints"]}
    assert spread == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    (near,) = pod(deployment)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "kubernetes.io/arch"
    assert {item["name"] for item in pod(deployment)["containers"][0]["env"]} == set(fleet.REPLICAS_AGREE)
    egress = found["NetworkPolicy", "prod-fleet"]["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 4222, 5222}

    tree = fleet.config(OWNER, spec(fleet={"replicas": 3, "log": LOG}), AROUND)
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(tree))
    log = load(FleetConfig, file=file).log.nats
    assert log and log.servers == ("nats://nats-0.nats:4222", "tls://nats-1.nats:5222")
    mounted = {mount["mountPath"] for mount in pod(deployment)["containers"][0]["volumeMounts"]}
    assert log.tls
    files = (log.credentials_file, log.tls.ca_file, log.tls.cert_file, log.tls.key_file)
    assert {str(file.parent) for file in files if file} == {path for path in mounted if "/log-" in path}


def test_a_fleet_alone_has_nothing_of_a_log() -> None:
    alone = children(fleet={})["Deployment", "prod-fleet"]
    assert "env" not in pod(alone)["containers"][0] and "podAffinity" not in pod(alone)["affinity"]
    assert "log" not in fleet.config(OWNER, spec(), AROUND)


def test_receivers_take_the_pushes_that_replicas_judge(tmp_path: Path) -> None:
    wanted = {"min": 3, "max": 40, "pushesPerSecond": 5000}
    change = {"tlsSecret": "tls", "agents": {"source": "Trace"}}
    found = children(fleet={"replicas": 3, "log": LOG, "receivers": wanted}, **change)
    without = children(fleet={"replicas": 3, "log": LOG}, **change)

    assert {key for key in found if key not in without} == {
        (kind, "prod-receivers")
        for kind in (
            "ServiceAccount", "Service", "NetworkPolicy", "Deployment", "HorizontalPodAutoscaler",
            "PodDisruptionBudget", "ServiceMonitor",
        )
    }  # fmt: skip
    deployment, autoscaler = found["Deployment", "prod-receivers"], found["HorizontalPodAutoscaler", "prod-receivers"]
    assert "replicas" not in deployment["spec"], "the autoscaler sets it"
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "prod-receivers"
    assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (3, 40)
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == receivers.PUSHES_PER_SECOND
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "5000"}
    service = found["Service", "prod-receivers"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget", "prod-receivers"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service", "prod-fleet"] == without["Service", "prod-fleet"]
    assert not found["Service", "prod-fleet"]["spec"]["selector"].items() <= labels.items(), "the API asks replicas"
    agent = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ingero-push", "ingero.io/owner": "prod"}}}
    policy = found["NetworkPolicy", "prod-receivers"]["spec"]
    (rule,) = [rule for rule in policy["ingress"] if rule["from"] == [agent]]
    assert {item["port"] for item in rule["ports"]} >= {4317, 4318}
    assert {item["port"] for rule in policy["egress"] for item in rule["ports"]} >= {4222, 5222, 53}
    for name in ("prod-push", "prod-trace"):
        (container,) = pod(found["DaemonSet", name])["containers"]
        assert any("prod-receivers.ml.svc:4318" in word for word in container["args"])
        reached = [peer for rule in found["NetworkPolicy", name]["spec"]["egress"] for peer in rule.get("to", ())]
        assert {"podSelector": {"matchLabels": service["selector"]}} in reached


def test_fleet_runs_as_a_receiver_with_the_arguments_of_its_pod(tmp_path: Path) -> None:
    found = children(fleet={"log": LOG, "receivers": {}})
    (container,) = pod(found["Deployment", "prod-receivers"])["containers"]
    file = tmp_path / "fleet.yaml"
    file.write_text(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"])
    assignments = [word for word in container["args"][3:] if word != "--set"]

    config = load(FleetConfig, file=file, assignments=assignments)

    assert config.log.role == "receiver" and config.log.nats == load(FleetConfig, file=file).log.nats
    protocols = config.receivers.otlp.protocols
    assert protocols.grpc and protocols.http
    assert protocols.grpc.max_connection_age == protocols.http.max_connection_age == 300.0
    mounts = {item["mountPath"] for item in container["volumeMounts"]}
    assert config.log.nats and str(config.log.nats.credentials_file).startswith(tuple(mounts))
    assert {item["name"] for item in container["volumeMounts"]} == {
        item["name"] for item in pod(found["Deployment", "prod-receivers"])["volumes"]
    }
    for name in ("startupProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] == "vitals", "a receiver without verdicts is not restarted"


def test_another_autoscaler_may_set_the_number_of_receivers() -> None:
    found = children(fleet={"log": LOG, "receivers": {"autoscaler": False}})
    assert ("HorizontalPodAutoscaler", "prod-receivers") not in found
    assert "replicas" not in found["Deployment", "prod-receivers"]["spec"]
