"""The two DaemonSets: `trace` with the capabilities that it needs, `fleet-push` with none, and with the sink."""

from typing import Final

from ingero_contract.node_problems import CHECK_CONTAINER, TERMINATION_LOG
from ingero_operator.api.base import SecretKey
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Source
from ingero_operator.kinds import Manifest
from ingero_operator.render.common import (
    AGENT_API_PORT,
    OTLP_HTTP,
    PUSH_PORT,
    SINK_PORT,
    TRACE_PORT,
    Owner,
    Platform,
    confined,
    container,
    locked_down,
    probe,
    pulled,
    service,
    service_account,
    service_monitor,
    tolerations,
    unprivileged,
    workload,
)
from ingero_operator.render.fleet import TLS, TOKEN, secret_volume

TRACE: Final = "trace"
PUSH: Final = "push"
STATE: Final = "/var/lib/ingero"
SOCKET: Final = "/run/ingero"
API_TLS: Final = "/etc/ingero/api-tls"
API_TOKEN: Final = "/etc/ingero/api-token"
CAPABILITIES: Final = ("BPF", "PERFMON", "SYS_PTRACE", "CHECKPOINT_RESTORE", "SYS_RESOURCE", "DAC_READ_SEARCH")
"""Capabilities to load and attach the programs: bpf(2), perf_event_open(2), memory maps of other processes and the
files behind them (also deleted ones), locked memory, files of other users."""

HOST_FOLDERS: Final = {
    "debugfs": "/sys/kernel/debug",
    "tracefs": "/sys/kernel/tracing",
    "btf": "/sys/kernel/btf",
}


def children(owner: Owner, spec: FleetClusterSpec, platform: Platform) -> list[Manifest | None]:
    """All children on the GPU nodes, in the order in which they are applied."""
    tracing = spec.agents.source is Source.TRACE
    return [
        service_account(owner, TRACE) if tracing else None,
        service_account(owner, PUSH),
        service(owner, PUSH, _push_ports(spec), headless=True),
        trace(owner, spec, platform) if tracing else None,
        push(owner, spec, platform),
        service_monitor(owner, platform, PUSH, ("sink", PUSH), spec.service_monitors),
    ]


def host_state(owner: Owner) -> str:
    """Directory on the node for the database of one FleetCluster, so that two FleetClusters do not share one."""
    return f"{STATE}/{owner.namespace}-{owner.name}"


def trace(owner: Owner, spec: FleetClusterSpec, platform: Platform) -> Manifest:
    """The DaemonSet that counts calls into a database on the node; not ready while it could see no calls.

    An init container tries what tracing needs and leaves what is missing in the pod's status.
    """
    wanted = spec.agents.trace
    capabilities = [*CAPABILITIES, *(["SYS_ADMIN"] if wanted.sys_admin else [])]
    fleet_args, fleet_mounts, fleet_volumes = _to_fleet(spec, "otlp")
    security = {
        **locked_down(),
        "privileged": False,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": capabilities},
        "seccompProfile": {"type": "Unconfined" if wanted.unconfined else "RuntimeDefault"},
        **confined(wanted),
    }
    mounts: list[Manifest] = [
        {"name": "state", "mountPath": STATE},
        {"name": "tmp", "mountPath": "/tmp"},
        *({"name": name, "mountPath": path, "readOnly": True} for name, path in HOST_FOLDERS.items()),
        *fleet_mounts,
    ]
    tracer = container(
        TRACE,
        platform.image_of("agent", spec.version, spec.images.agent),
        [*_trace_arguments(owner, spec), *fleet_args],
        {"trace": TRACE_PORT},
        wanted.resources,
        mounts,
        env=_environment(),
        readinessProbe=probe("/readyz", "trace"),
        securityContext=security,
    )
    volumes: list[Manifest] = [
        {"name": "state", "hostPath": {"path": host_state(owner), "type": "DirectoryOrCreate"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        *({"name": name, "hostPath": {"path": path, "type": ""}} for name, path in HOST_FOLDERS.items()),
        *fleet_volumes,
    ]
    check = {key: value for key, value in tracer.items() if key not in ("ports", "readinessProbe")} | {
        "name": CHECK_CONTAINER,
        "args": ["check", f"--db={STATE}/ingero.db", f"--termination-log={TERMINATION_LOG}"],
    }
    pod = {"hostPID": True, "initContainers": [check], "containers": [tracer], "volumes": volumes}
    return _daemon_set(owner, spec, platform, TRACE, pod)


def push(owner: Owner, spec: FleetClusterSpec, platform: Platform) -> Manifest:
    """The DaemonSet that pushes health; it offers straggler events on a socket that only its sink container sees."""
    args, mounts, volumes = _push_arguments(owner, spec)
    socket = {"name": "socket", "mountPath": SOCKET}
    agent = container(
        PUSH,
        platform.image_of("agent", spec.version, spec.images.agent),
        args,
        {name: number for name, (number, _) in _push_ports(spec).items() if name != "sink"},
        spec.agents.push.resources,
        [socket, {"name": "baseline", "mountPath": "/baseline"}, *mounts],
        env=_environment(),
        startupProbe=probe("/healthz", PUSH, period=1, failures=120),
        # Ready: its pushes reach Fleet. A short outage of Fleet does not make the agent unready.
        readinessProbe=probe("/readyz", PUSH, failures=6),
        livenessProbe=probe("/healthz", PUSH, period=20),
    )
    sink = container(
        "sink",
        platform.image_of("sink", spec.version, spec.images.sink),
        ["--socket-path", f"{SOCKET}/remediate.sock", "--listen", f":{SINK_PORT}"],
        {"sink": SINK_PORT},
        spec.agents.push.sink_resources,
        [socket],
        startupProbe=probe("/healthz", "sink", period=1, failures=60),
        livenessProbe=probe("/healthz", "sink"),
    )
    pod: Manifest = {
        "securityContext": {**unprivileged(), **confined(spec.agents.push)},
        "volumes": [
            {"name": "socket", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "baseline", "emptyDir": {"sizeLimit": "16Mi"}},
            *volumes,
        ],
    }
    if platform.native_sidecars:
        pod["initContainers"] = [{**sink, "restartPolicy": "Always"}]
        pod["containers"] = [agent]
    else:
        pod["containers"] = [agent, sink]
    return _daemon_set(owner, spec, platform, PUSH, pod)


def _push_ports(spec: FleetClusterSpec) -> dict[str, tuple[int, str]]:
    """Ports of the pushing pods by name, with their application protocols."""
    ports = {"sink": (SINK_PORT, "http"), PUSH: (PUSH_PORT, "http")}
    return {**ports, "api": (AGENT_API_PORT, "https")} if spec.agents.api else ports


def _environment() -> list[Manifest]:
    """The node's name, and the devices of NVML, which the runtime gives to containers that ask for them."""
    return [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ]


def _endpoint(owner: Owner, spec: FleetClusterSpec) -> str:
    service = "receivers" if spec.fleet.receivers else "fleet"
    return f"{owner.child(service)}.{owner.namespace}.svc:{OTLP_HTTP}"


def _to_fleet(spec: FleetClusterSpec, prefix: str) -> tuple[list[str], list[Manifest], list[Manifest]]:
    """How a command reaches Fleet securely: its arguments, mounts and volumes. `prefix`: that of its flags."""
    args: list[str] = []
    mounts: list[Manifest] = []
    volumes: list[Manifest] = []
    if spec.tls_secret:
        args.append(f"--{prefix}-tls-ca={TLS}/ca.crt")
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": True})
        volumes.append(secret_volume("tls", SecretKey(name=spec.tls_secret, key="ca.crt")))
    else:
        args.append(f"--{prefix}-insecure")
    if spec.token_secret:
        args.append(f"--{prefix}-token-file={TOKEN}/{spec.token_secret.key}")
        mounts.append({"name": "token", "mountPath": TOKEN, "readOnly": True})
        volumes.append(secret_volume("token", spec.token_secret))
    return args, mounts, volumes


def _trace_arguments(owner: Owner, spec: FleetClusterSpec) -> list[str]:
    """The tracer keeps its counts on the node and sends collectives, throttled GPUs and counters to Fleet."""
    args = [
        "trace",
        f"--db={STATE}/ingero.db",
        f"--prometheus=:{TRACE_PORT}",
        f"--otlp={_endpoint(owner, spec)}",
        f"--otlp-interval={spec.agents.trace.export_interval}",
        f"--cluster={spec.cluster_id}",
        "--node=$(NODE_NAME)",
    ]
    return [*args, f"--job-id={spec.agents.job_id}"] if spec.agents.job_id else args


def _push_arguments(owner: Owner, spec: FleetClusterSpec) -> tuple[list[str], list[Manifest], list[Manifest]]:
    fleet_args, mounts, volumes = _to_fleet(spec, "fleet")
    args = [
        "fleet-push",
        f"--fleet-endpoint={_endpoint(owner, spec)}",
        f"--fleet-cluster-id={spec.cluster_id}",
        "--fleet-node-id=$(NODE_NAME)",
        f"--fleet-push-interval={spec.fleet.push_interval}",
        f"--fleet-workload-type={spec.agents.workload_type}",
        "--fleet-persist-path=/baseline/health-baseline.json",
        "--remediate",
        f"--remediate-socket={SOCKET}/remediate.sock",
        f"--metrics-listen=:{PUSH_PORT}",
    ]
    if spec.agents.job_id:
        args.append(f"--fleet-job-id={spec.agents.job_id}")
    if spec.agents.world_size:
        args.append(f"--fleet-world-size={spec.agents.world_size}")
    args += fleet_args
    if spec.agents.source is Source.TRACE:
        args.append(f"--signal-db-path={STATE}/ingero.db")
        volumes.append({"name": "state", "hostPath": {"path": host_state(owner), "type": "DirectoryOrCreate"}})
        mounts.append({"name": "state", "mountPath": STATE, "readOnly": True})
    else:
        args += ["--stub", f"--stub-script={SOCKET}/stub.yaml"]  # to try things out: written by `kubectl exec`
    api = spec.agents.api
    if api:
        args += [
            "--mcp", f"--api-listen=:{AGENT_API_PORT}", f"--api-tls-cert={API_TLS}/tls.crt",
            f"--api-tls-key={API_TLS}/tls.key", f"--explain-token-file={API_TOKEN}/{api.token_secret.key}",
        ]  # fmt: skip
        volumes += [secret_volume("api-tls", api.tls_secret), secret_volume("api-token", api.token_secret)]
        mounts += [
            {"name": name, "mountPath": path, "readOnly": True}
            for name, path in (("api-tls", API_TLS), ("api-token", API_TOKEN))
        ]
    return args, mounts, volumes


def _daemon_set(owner: Owner, spec: FleetClusterSpec, platform: Platform, component: str, pod: Manifest) -> Manifest:
    wanted = spec.agents
    common: Manifest = {
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": dict(wanted.node_selector),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, *tolerations(wanted.tolerations)],
        **pulled(platform, spec.image_pull_secrets),
        **pod,
    }
    priority = wanted.priority_class_name or platform.config.agent_priority_class
    if priority:
        common["priorityClassName"] = priority
    if wanted.runtime_class_name:
        common["runtimeClassName"] = wanted.runtime_class_name
    rolling = {"maxUnavailable": f"{wanted.max_unavailable_percent}%", "maxSurge": 0}
    special = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    return workload(owner, "DaemonSet", component, spec.version or platform.config.version, common, special)
