"""Attribute keys on resources, data points and log records."""

from typing import Final

NODE_ID: Final = "ingero.node.id"
"""Resource: the node's name, the Kubernetes node name in a cluster."""

INSTANCE_ID: Final = "service.instance.id"
"""Resource: the agent process, random with every start, by which two agents with one node id are told apart."""

CLUSTER_ID: Final = "ingero.cluster.id"
"""Resource: the cluster that the node belongs to."""

WORLD_SIZE: Final = "ingero.world_size"
"""Resource: ranks of the job, only when greater than 0."""

NODE_RANK: Final = "ingero.node.rank"
"""Resource: this node's rank, rank 0 included, only when a world size is known."""

PROVIDER: Final = "ingero.provider"
"""Resource: aws, gcp, azure and others, only when detected."""

JOB_ID: Final = "ingero.job.id"
"""Resource: the job or workload instance; part of the cohort."""

STAGE: Final = "ingero.pipeline.stage"
"""Resource: pipeline stage where known; part of the cohort."""

POD_NAME: Final = "k8s.pod.name"
"""Resource: the pod that the process runs in, where known."""

NODE_STATE: Final = "ingero.node.state"
"""Point: calibrating, active or idle."""

WORKLOAD_TYPE: Final = "ingero.workload_type"
"""Point: free text such as training or inference; part of the cohort."""

CGROUP_PATH_HASH: Final = "ingero.cgroup_path_hash"
"""Point: first 16 hexadecimal digits of the SHA-256 of a cgroup path, or empty."""

DETECTION_MODE_VALUE: Final = "ingero.detection_mode"
"""Point: which threshold the agent used to classify its node."""

DECISION_SOURCE: Final = "ingero.decision.source"
"""Point: verdict, threshold or history: what the agent's own classification was based on."""

GPU_MODEL: Final = "ingero.gpu_model"
"""Point or resource: name of GPU 0 as nvidia-smi prints it."""

GPU_COUNT: Final = "ingero.gpu_count"
"""Point: number of GPUs."""

GPU_UUID: Final = "gpu.uuid"
"""Point: the GPU, as nvidia-smi prints its UUID."""

MEMCPY_DIRECTION: Final = "ingero.memcpy.direction"
"""Point: h2h, h2d, d2h, d2d, default or unknown."""

EVENT_ID: Final = "ingero.event.id"
"""Point: identifier shared by the OTLP event and the socket line of one tick."""

THRESHOLD: Final = "threshold"
"""Point of a straggler event: the threshold that was crossed."""

SCORE: Final = "score"
"""Point of a straggler event: the score that crossed it."""

DOMINANT_SIGNAL: Final = "dominant_signal"
"""Point of a straggler event: throughput, compute, memory, cpu or unknown."""

LAST_VERDICT: Final = "ingero.agent.last_verdict"
"""Resource: the verdict that the agent last received, echoed so that a restarted Fleet forgets no straggler."""

NCCL_OP_TYPE: Final = "nccl.op_type"
"""Point: the collective, `allreduce` or `ncclAllReduce`; both spellings are accepted."""

NCCL_COMM_HASH: Final = "nccl.comm_id_hash"
"""Point: communicator identity, 16 hexadecimal digits."""

NCCL_RANK: Final = "nccl.rank"
"""Point: rank inside the communicator."""

NCCL_NRANKS: Final = "nccl.nranks"
"""Point: size of the communicator."""

NCCL_SEQ: Final = "nccl.seq"
"""Point: number of the collective inside its communicator, counted by the agent."""

NCCL_MESSAGE_SIZE: Final = "nccl.message.size"
"""Point: bytes that the collective was called with, where known."""

WORK: Final = "ingero.work"
"""Point: the work of the rank since its previous point of this communicator, tokens or bytes or any other unit."""

NCCL_GPU: Final = "nccl.gpu"
"""Point: the GPU of a member of a communicator whose rank is not known."""

INSPECTOR_NODE: Final = "node"
"""Point of NCCL Inspector: the host name of the process."""

INSPECTOR_GPU: Final = "gpu"
"""Point of NCCL Inspector: `GPU` and CUDA's number of the device in the process."""

INSPECTOR_COMM: Final = "comm_id"
"""Point of NCCL Inspector, verbose form: communicator identity."""

INSPECTOR_NRANKS: Final = "nranks"
"""Point of NCCL Inspector: size of the communicator, as text."""

INSPECTOR_OP: Final = "collective"
"""Point of NCCL Inspector: the collective."""

INSPECTOR_SEQ: Final = "coll_sn"
"""Point of NCCL Inspector, verbose form: number of the collective in its communicator and operation, as text."""

INSPECTOR_SIZE: Final = "coll_msg_size_bytes"
"""Point of NCCL Inspector, verbose form: bytes of the collective, as text."""

NCCL_DATATYPE: Final = "nccl.datatype"
"""Point: NCCL's number of the data type."""

NCCL_REDUCE_OP: Final = "nccl.reduce_op"
"""Point: NCCL's number of the reduction, only for collectives that reduce."""

SOURCE: Final = "source"
"""Point: cuda, driver, graph or nccl."""

OPERATION: Final = "operation"
"""Point: the function."""

PERCENTILE: Final = "percentile"
"""Point: p50, p95 or p99."""

PROCESS_PID: Final = "pid"
"""Point: process id on the host."""

PROCESS_COMM: Final = "comm"
"""Point: the process's name."""

LIBNCCL_PATH: Final = "libnccl_path"
"""Point: path of the NCCL library, as the process sees it."""

LIBNCCL_VERSION: Final = "libnccl_version"
"""Point: version of the NCCL library, where the file name has it."""

PROBE_GROUP: Final = "ingero.trace.group"
"""Point: core, launch or memory."""

CURRENCY: Final = "ingero.currency"
"""Point: currency of an amount of money, as USD."""

TAINT_ACTION: Final = "ingero.taint.action"
"""Record of a taint on a Kubernetes node: add, raise, lower, renew or remove."""

TAINT_REASON: Final = "ingero.taint.reason"
"""Record of a taint: the reason, as in the operator's Event."""

TAINT_VERDICT: Final = "ingero.taint.verdict"
"""Record of a taint: eight hexadecimal digits, also the taint's value on the node."""

TAINT_EFFECT: Final = "ingero.taint.effect"
"""Record of a taint: NoSchedule, PreferNoSchedule, or empty for an annotation alone."""

TAINT_EVIDENCE: Final = "ingero.taint.evidence"
"""Record of a taint: the annotation on the node, JSON."""

VERDICT_KIND: Final = "ingero.verdict.kind"
"""Log record: slow, stopped, silent, job_slow and others."""

VERDICT_STATE: Final = "ingero.verdict.state"
"""Log record: the detector's state of the node."""

VERDICT_SINCE: Final = "ingero.verdict.since"
"""Log record: estimated onset, RFC 3339."""

VERDICT_SEVERITY: Final = "ingero.verdict.severity"
"""Log record: share of its own rate that the node lost, 0 to 1."""

VERDICT_COHORT: Final = "ingero.verdict.cohort"
"""Log record: the peers that the node was compared with."""

VERDICT_EVIDENCE: Final = "ingero.verdict.evidence"
"""Log record: the numbers that the verdict is based on, as JSON text."""

VERDICT_DIGEST: Final = "ingero.verdict.digest"
"""Log record: digest of inputs and parameters; the same inputs give the same digest."""
