"""Jobs that hang, as agents report them: shown once whoever reports, bounded, validated, kept by a running Fleet."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_contract import attributes, routes
from ingero_contract.values import HangVerdict
from ingero_fleet import hangs
from ingero_fleet.hangs import HangTracker
from ingero_fleet.state_codec import encode_state, sealed, unsealed
from ingero_kit.hang_records import MAX_BYTES, MAX_NAMED, NEEDLE, HangRank, HangRecord, encode_hangs, read_hangs
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.processes import fleet, wait_until
from ingero_testing.web import web

NOW = 1_700_000_000.0
CULPRIT = HangRank(2, "10.0.0.2", 102, 0)
HANG = HangRecord(
    cluster="prod", node="gpu-0", job="llama", key="00ff", kind=HangVerdict.HANG, message="It waits.", time=NOW,
    since=NOW - 40, until=NOW + 90, comm="0xa/0x1:0x2", op="AllReduce", waiting=3, ranks=(CULPRIT,), rank_count=1,
)  # fmt: skip


def push(*records: HangRecord) -> Push:
    first = records[0]
    sender = HealthReport(node_id=first.node, cluster_id=first.cluster, job_id=first.job)
    return Push(Signal.LOGS, "protobuf", encode_hangs(records, sender).SerializeToString())


def take(tracker: HangTracker, *records: HangRecord, now: float = NOW) -> HangTracker:
    for record in records:
        tracker.take(push(record), now)
    return tracker


def test_a_record_survives_its_way() -> None:
    full = replace(
        HANG, possible=(HangRank("10.0.0.3:7:1", "10.0.0.3", 7, 1),) * MAX_NAMED, possible_count=200
    )  # fmt: skip
    assert list(read_hangs(push(HANG, full).body, "")) == [HANG, full]
    assert [getattr(record, "cluster", record) for record in read_hangs(push(HANG).body, "of-token")] == ["of-token"]


def test_a_hang_is_shown_with_its_communicator_and_its_culprits() -> None:
    assert take(HangTracker(), HANG).hangs(NOW) == [
        {
            "cluster_id": "prod", "job_id": "llama", "kind": "hang", "since": "2023-11-14T22:12:40.000Z",
            "why": "It waits.", "comm": "0xa/0x1:0x2", "op": "AllReduce", "waiting": 3,
            "ranks": [{"rank": 2, "host": "10.0.0.2", "pid": 102, "gpu": 0}], "rank_count": 1,
            "possible": [], "possible_count": 0, "reported_by": "gpu-0", "reported": "2023-11-14T22:13:20.000Z",
        }
    ]  # fmt: skip


def test_hosts_of_one_job_report_one_hang_and_the_newest_record_counts() -> None:
    second = replace(HANG, node="gpu-1", time=NOW + 10, message="It waits still.")
    tracker = take(HangTracker(), HANG, second, HANG, now=NOW + 10)

    (found,) = tracker.hangs(NOW + 10)
    assert (found["reported_by"], found["why"]) == ("gpu-1", "It waits still.")
    assert tracker.outcomes == {"hang": 2, "late": 1} and tracker.by_kind() == {("prod", "hang"): 1}


def test_a_job_that_goes_on_is_shown_no_more_and_a_late_record_does_not_bring_it_back() -> None:
    end = replace(HANG, kind=HangVerdict.NONE, ranks=(), rank_count=0, time=NOW + 60, until=NOW + 150)
    tracker = take(HangTracker(), HANG, end, HANG, now=NOW + 60)

    assert tracker.hangs(NOW + 60) == [] and tracker.by_kind() == {}
    assert tracker.watched(NOW + 60) == 1 and tracker.outcomes["late"] == 1
    assert tracker.watched(NOW + 60, "lab") == tracker.watched(NOW + 150) == 0


def test_a_host_that_does_not_know_of_the_hang_yet_does_not_end_it() -> None:
    other = replace(HANG, node="gpu-9", kind=HangVerdict.NONE, ranks=(), rank_count=0, since=0.0, time=NOW + 5)
    tracker = take(HangTracker(), HANG, other, now=NOW + 5)
    assert [item["reported_by"] for item in tracker.hangs(NOW + 5)] == ["gpu-0"]
    assert take(tracker, replace(other, since=HANG.since), now=NOW + 6).hangs(NOW + 6) == []
    assert take(HangTracker(), other, replace(HANG, time=NOW + 6), now=NOW + 6).hangs(NOW + 6)


def test_a_hang_that_nobody_reports_any_more_ends() -> None:
    tracker = take(HangTracker(), HANG)
    assert tracker.hangs(NOW + 89) and not tracker.hangs(NOW + 90)
    tracker.expire(NOW + 90)
    assert len(tracker) == 0 and tracker.by_kind() == tracker.by_cluster() == {}
    tracker = take(HangTracker(), replace(HANG, until=NOW + 1e6))
    assert not tracker.hangs(NOW + hangs.MAX_SECONDS)


def test_jobs_of_different_clusters_and_communicators_are_told_apart() -> None:
    tracker = take(HangTracker(), HANG, replace(HANG, key="01"), replace(HANG, cluster="lab", since=NOW - 90))
    assert [item["cluster_id"] for item in tracker.hangs(NOW)] == ["lab", "prod", "prod"]
    assert [item["cluster_id"] for item in tracker.hangs(NOW, "lab")] == ["lab"]


def test_jobs_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "MAX_JOBS", 2)
    tracker = take(HangTracker(), *(replace(HANG, key=str(number)) for number in range(4)))
    assert len(tracker) == 2 and tracker.outcomes["over_limit"] == 2


def test_a_record_from_the_future_is_not_kept() -> None:
    ahead = replace(HANG, time=NOW + 7200, until=NOW + 7300)
    assert take(HangTracker(), ahead).outcomes == {"ahead": 1}
    assert take(HangTracker(), replace(HANG, until=NOW - 1)).outcomes == {"expired": 1}


def test_a_restarted_fleet_still_knows_the_hang() -> None:
    before, after = take(HangTracker(), HANG), HangTracker()
    after.restore(unsealed(sealed(encode_state({"hangs": before.state(NOW)})))["hangs"])
    assert after.hangs(NOW) == before.hangs(NOW) and after.state(NOW) == before.state(NOW)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (attributes.VERDICT_KIND, "slow", "is not one of hang, dead"),
        (attributes.VERDICT_SINCE, "yesterday", "not as agents send it"),
        (attributes.VERDICT_EVIDENCE, "{}", "not as agents send it"),
        (attributes.VERDICT_EVIDENCE, "[" * 5000, "not as agents send it"),
        (attributes.VERDICT_EVIDENCE, '{"key":"a","until":1e12,"ranks":[],"possible":[]}', "not as agents send it"),
        (attributes.VERDICT_EVIDENCE, '{"key":"a","until":1,"ranks":[7],"possible":[]}', "not as agents send it"),
    ],
)  # fmt: skip
def test_a_record_that_is_wrong_is_counted_and_the_others_are_kept(key: str, value: str, words: str) -> None:
    request = encode_hangs([HANG, replace(HANG, key="01")], HealthReport(node_id="gpu-0", cluster_id="prod"))
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    next(pair for pair in record.attributes if pair.key == key).value.string_value = value
    body = request.SerializeToString()

    tracker = HangTracker()
    tracker.take(Push(Signal.LOGS, "protobuf", body), NOW)
    assert tracker.outcomes == {"refused": 1, "hang": 1} and len(tracker) == 1
    assert any(words in str(found) for found in read_hangs(body, ""))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_rubbish_never_fails(body: bytes) -> None:
    tracker = HangTracker()
    tracker.take(Push(Signal.LOGS, "protobuf", body + NEEDLE), NOW)
    tracker.take(Push(Signal.LOGS, "protobuf", NEEDLE * MAX_BYTES), NOW)
    assert tracker.hangs(NOW) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_running_fleet_shows_the_hang(tmp_path: Path, processes: int) -> None:
    now = time.time()
    with fleet(tmp_path, {"receivers": {"otlp": {"processes": processes}}}) as service:
        for number in range(3):
            report = encode_report(HealthReport(node_id=f"gpu-{number}", cluster_id="prod", score=0.9))
            for path, body in (
                (routes.OTLP_METRICS, report.SerializeToString()),
                (routes.OTLP_LOGS, push(replace(HANG, time=now, since=now - 40, until=now + 600)).body),
            ):
                headers = {"content-type": "application/x-protobuf"}
                assert web.post(service.url("otlp/http", path), content=body, headers=headers).status_code == 200

        def known() -> Any:
            got = web.get(service.url("diagnostics", f"{routes.FLEET_COLLECTIVES}?cluster_id=prod"))
            return got.json()["hangs"] if got.status_code == 200 else []

        wait_until(lambda: bool(known()), "the hang")
        assert known()[0]["ranks"] == [CULPRIT._asdict()]
        asked = web.get(service.url("threshold", f"{routes.FLEET_STRAGGLERS}?cluster_id=prod")).json()
        assert ([item["job_id"] for item in asked["hangs"]], asked["watched_jobs"]) == (["llama"], 1)
        update = web.get(service.url("diagnostics", routes.FLEET_PAGE_UPDATE)).json()
        assert [(item["kind"], item["why"]) for item in update["hangs"]] == [("hang", "It waits.")]
        page = web.get(service.url("prometheus", "/metrics")).text
        assert 'ingero_fleet_hanging_jobs{cluster_id="prod",kind="hang"} 1.0' in page
        assert 'ingero_fleet_watched_jobs{cluster_id="prod"} 1.0' in page
