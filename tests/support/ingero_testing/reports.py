"""Generates health reports of every kind for property-based tests."""

from hypothesis import strategies as st

from ingero_contract.values import NodeState
from ingero_kit.health_report import HealthReport

NOW = 1_700_000_000.0
NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40)
RATIOS = st.floats(0, 1)

REPORTS = st.builds(
    HealthReport,
    node_id=NAMES,
    cluster_id=NAMES,
    state=st.sampled_from(NodeState),
    score=RATIOS,
    throughput=RATIOS,
    compute=st.none() | RATIOS,
    memory=RATIOS,
    cpu=RATIOS,
    rate=st.none() | st.floats(0, 1e9),
    degraded=st.booleans(),
    detection_mode=st.sampled_from(["", "fleet", "none"]),
    fleet_reachable=st.booleans(),
    workload_type=st.sampled_from(["", "training"]),
    cgroup_path_hash=st.sampled_from(["", "0123456789abcdef"]),
    gpu_model=st.sampled_from(["", "NVIDIA H200"]),
    job_id=st.sampled_from(["", "job-1"]),
    stage=st.sampled_from(["", "3"]),
    last_verdict=st.sampled_from(["", "straggler;kind=slow"]),
    time_unix_nano=st.integers(0, int(NOW * 1e9)),
)
