"""The workload of real pods: its programs, and the objects that run one rank of it on every GPU node."""

import base64
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from ingero_testing.gpu_job import COLLECTIVES, RUNTIME, compile_c

NAMESPACE = "training"
NAME = "job"
PORT = 29500
GPU = {"nvidia.com/gpu.present": "true"}
SOURCE = Path(__file__).with_name("pod_job.c")
STEP_MICROSECONDS, EXTRA_MICROSECONDS = 100_000, 50_000
STARTUP_SECONDS = 10


def build(folder: Path) -> list[Path]:
    """Compile the program and its two libraries for this machine's architecture and C library."""
    shared = ("-shared", "-fPIC")
    libraries = [
        compile_c(folder, name, source, *shared, f"-Wl,-soname,{name}", *flags)
        for name, source, flags in (
            ("libcudart.so.12", RUNTIME, ("-DBARRIER=job_barrier",)),
            ("libnccl.so.2", COLLECTIVES, ("-DHASH_AT=9168",)),
        )
    ]
    program = compile_c(
        folder, "pod_job", SOURCE.read_text(), *map(str, libraries), "-rdynamic", "-Wl,-rpath,$ORIGIN"
    )
    return [program, *libraries]


def objects(programs: list[Path], image: str, ranks: int) -> list[dict[str, Any]]:
    """Namespace, programs, the Service by which ranks find rank 0, and an indexed Job with one rank on a node.

    `image`: any with the C library that the programs were compiled for.
    """
    labels = {"app.kubernetes.io/name": "training-job"}
    metadata = {"namespace": NAMESPACE, "name": NAME, "labels": labels}
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    environment: dict[str, Any] = {
        "RANK": {"valueFrom": index},
        "POD_NAMESPACE": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        "POD_NAME": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        "WORLD_SIZE": {"value": str(ranks)},
        "MASTER_ADDR": {"value": f"{NAME}-0.{NAME}"},
        "MASTER_PORT": {"value": str(PORT)},
    }
    container = {
        "name": NAME,
        "image": image,
        "command": ["/job/pod_job", *map(str, (STEP_MICROSECONDS, EXTRA_MICROSECONDS, STARTUP_SECONDS))],
        "env": [{"name": name, **value} for name, value in environment.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        },
        "volumeMounts": [{"name": "programs", "mountPath": "/job", "readOnly": True}],
    }  # fmt: skip
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    pod = {
        "restartPolicy": "OnFailure",
        "subdomain": NAME,
        "nodeSelector": GPU,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}
        },
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [container],
        "volumes": [{"name": "programs", "configMap": {"name": NAME, "defaultMode": 0o555}}],
    }  # fmt: skip
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in programs}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels,
            "ports": [{"name": "barrier", "port": PORT}]}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {
            "completionMode": "Indexed", "completions": ranks, "parallelism": ranks, "backoffLimit": 1000,
            "template": {"metadata": {"labels": labels}, "spec": pod}}},
    ]  # fmt: skip
