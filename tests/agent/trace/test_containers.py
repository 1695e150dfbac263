"""Where a process runs: cgroup, container, pod."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.containers import Container, parse_container, parse_environment
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_agent.trace.queries import OPERATIONS, Filter, operations
from ingero_agent.trace.store import TraceStore

IDENTITY = "ab" * 32
POD = "0f3c0000-1111-2222-3333-444455556666"
SYSTEMD = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
    f"cri-containerd-{IDENTITY}.scope"
)


@pytest.mark.parametrize(
    ("path", "container", "pod_uid"),
    [
        pytest.param(SYSTEMD, IDENTITY, POD, id="systemd driver"),
        pytest.param(f"/kubepods/besteffort/pod{POD}/{IDENTITY}", IDENTITY, POD, id="cgroupfs driver"),
        pytest.param(f"/system.slice/docker-{IDENTITY}.scope", IDENTITY, "", id="docker"),
        pytest.param("/user.slice/session-1.scope", "", "", id="no container"),
    ],
)
def test_container_and_pod_are_read_from_the_cgroup(path: str, container: str, pod_uid: str) -> None:
    found = parse_container(f"0::{path}\n", {})

    assert found == Container(path, container, pod_uid)


def test_a_pods_name_comes_from_its_environment_and_nobody_elses_does() -> None:
    environment = parse_environment(b"HOSTNAME=train-0\0POD_NAMESPACE=ml\0")

    assert parse_container(f"0::{SYSTEMD}\n", environment) == Container(SYSTEMD, IDENTITY, POD, "train-0", "ml")
    assert parse_container(f"0::{SYSTEMD}\n", {"POD_NAME": "other", **environment}) == Container(
        SYSTEMD, IDENTITY, POD, "other", "ml"
    )
    assert parse_container("0::/user.slice\n", environment) == Container("/user.slice")


@given(st.text(max_size=300), st.binary(max_size=300))
def test_anything_is_read(cgroups: str, environment: bytes) -> None:
    found = parse_container(cgroups, parse_environment(environment))

    assert found is None or 0 <= found.cgroup < 2**63


def test_a_query_shows_container_pod_and_job(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "a.db")
    store.add([CallCount(FUNCTIONS[0], pid, 3) for pid in (7, 8)], 1000.0, {7: "train"})
    store.places({7: Container(SYSTEMD, IDENTITY, POD, "train-0", "ml")}, {8: "4711"}, 1000.0)
    store.close()
    rows = [
        dict(zip(OPERATIONS, row, strict=True)) for row in operations(tmp_path / "a.db", Filter(begin=900, end=1100))
    ]

    assert {(row["pid"], row["container"], row["pod"], row["job"]) for row in rows} == {
        (7, "ab" * 6, "ml/train-0", ""), (8, "", "", "4711"),
    }  # fmt: skip


def test_a_database_of_an_older_agent_has_no_jobs(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "a.db")
    store.add([CallCount(FUNCTIONS[0], 7, 3)], 1000.0, {7: "train"})
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("DROP TABLE process_jobs")
    (row,) = operations(tmp_path / "a.db", Filter(begin=900, end=1100))

    assert dict(zip(OPERATIONS, row, strict=True))["job"] == ""
