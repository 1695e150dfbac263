"""Money: shares add up to the waiting, the innocent pay nothing, what has no rate is said."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import metrics, routes
from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState
from ingero_fleet import threshold_rule
from ingero_fleet.cost.bill import Bill, JobBill, StragglerCost, make_bill, savings, shares
from ingero_fleet.cost.export import CostExporter
from ingero_fleet.cost.files import read_prices
from ingero_fleet.cost.ledger import CostLedger, JobAccount
from ingero_fleet.cost.pricing import Prices
from ingero_fleet.cost.providers import parse_providers
from ingero_fleet.cost.tracker import COST, CostTracker
from ingero_fleet.live_detector import LiveDetector
from ingero_fleet.processor_settings import CostConfig, DetectorConfig, IngeroConfig, QuorumConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_kit.exposition import exposition
from ingero_kit.gpu_rates import builtin, parse
from ingero_kit.health_report import HealthReport
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_encode import encode_report
from ingero_kit.settings import SettingsError
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.web import web

SEVERITIES = st.lists(st.floats(0, 1), min_size=1, max_size=40)
CONFIG = IngeroConfig(quorum=QuorumConfig(statistical_min=3))
H100 = {"provider": "aws", "gpu_model": "NVIDIA H100 80GB HBM3", "gpu_count": 8}


@given(SEVERITIES)
def test_shares_add_up_to_the_waiting(severities: list[float]) -> None:
    assert math.isclose(math.fsum(shares(severities)), max(severities), abs_tol=1e-9)


@given(SEVERITIES)
def test_who_lost_nothing_pays_nothing_and_the_slower_pays_no_less(severities: list[float]) -> None:
    found = sorted(zip(severities, shares(severities), strict=True))

    assert all(share == 0 for severity, share in found if severity == 0)
    assert all(later[1] >= earlier[1] - 1e-12 for earlier, later in itertools.pairwise(found))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_shares_are_the_mean_over_all_orders_of_arrival(severities: list[float]) -> None:
    """The definition of the Shapley value, by brute force."""
    means = [0.0] * len(severities)
    orders = list(itertools.permutations(range(len(severities))))
    for order in orders:
        slowest = 0.0
        for member in order:
            means[member] += max(0.0, severities[member] - slowest) / len(orders)
            slowest = max(slowest, severities[member])

    assert shares(severities) == pytest.approx(means, abs=1e-9)


@given(SEVERITIES)
def test_what_curing_one_saves_is_what_the_job_costs_less_without_it(severities: list[float]) -> None:
    for member, saved in enumerate(savings(severities)):
        without = [severity for place, severity in enumerate(severities) if place != member]
        assert saved == max(severities) - max(without, default=0.0)


def snapshot(reports: list[HealthReport]) -> tuple[TickSnapshot, ScoreTable]:
    table = ScoreTable(ScoreLimits(1000, 10, 100), CONFIG.cohort.by)
    for report in reports:
        table.observe(report, 0.0)
    scores = ScoreSnapshot.take(table, 1.0)
    return TickSnapshot(scores, threshold_rule.compute(scores, threshold_rule.RuleState(), CONFIG)), table


def job(score_table: list[float], **fields: Any) -> list[HealthReport]:
    return [
        HealthReport(node_id=f"n{number}", cluster_id="c", score=score, job_id="j", **{**H100, **fields})
        for number, score in enumerate(score_table)
    ]


def bill_of(reports: list[HealthReport], prices: Prices | None = None) -> Bill:
    seen, table = snapshot(reports)
    return make_bill(seen, table.hardware, prices or Prices(builtin()), CONFIG.cohort.by)


def test_in_a_synchronised_job_everybody_waits_for_the_slowest() -> None:
    bill = bill_of(job([1.0, 1.0, 1.0, 0.5], world_size=32))

    assert bill.jobs[("c", "j")].cost == pytest.approx(4 * 8 * 12.29)
    assert [straggler.node for straggler in bill.stragglers] == [("c", "n3")]
    assert bill.stragglers[0].share == pytest.approx(0.5 * 4 * 8 * 12.29)
    assert bill.stragglers[0].saving == bill.stragglers[0].share


def test_two_equally_slow_ones_share_and_curing_one_alone_saves_nothing() -> None:
    bill = bill_of(job([1.0, 1.0, 1.0, 1.0, 0.5, 0.5], world_size=48))
    waiting = bill.jobs[("c", "j")].waiting

    assert [straggler.share for straggler in bill.stragglers] == pytest.approx([waiting / 2, waiting / 2])
    assert [straggler.saving for straggler in bill.stragglers] == [0.0, 0.0]


def test_without_a_world_size_only_the_straggler_s_own_time_is_lost() -> None:
    bill = bill_of(job([1.0, 1.0, 1.0, 0.5]))

    assert bill.jobs[("c", "j")].waiting == pytest.approx(0.5 * 8 * 12.29)


def judged(last: HealthReport, ticks: int) -> tuple[TickSnapshot, ScoreTable]:
    """Four nodes that the detector has learnt; then the last one reports something else for so many ticks."""
    config = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=8)})
    table, detector = ScoreTable(ScoreLimits(1000, 10, 1e9), CONFIG.cohort.by), LiveDetector(config)
    healthy = job([0.9, 0.9, 0.9, 0.9], world_size=32)
    for tick in range(12 + ticks):
        for report in [*healthy[:3], last if tick >= 12 else healthy[3]]:
            table.observe(report, 10.0 * tick)
        scores = ScoreSnapshot.take(table, 10.0 * tick)
        findings = detector.judge(scores, {})
    return TickSnapshot(scores, threshold_rule.compute(scores, threshold_rule.RuleState(), CONFIG), findings), table


def test_nobody_waits_for_a_stopped_node_whose_peers_go_on() -> None:
    (last,) = job([0.9, 0.9, 0.9, 0.0], world_size=32, state=NodeState.IDLE)[3:]
    seen, table = judged(last, 3)
    bill = make_bill(seen, table.hardware, Prices(builtin()), CONFIG.cohort.by)

    assert bill.jobs[("c", "j")].waiting == pytest.approx(8 * 12.29)


def test_the_verdict_s_severity_counts_when_there_is_one() -> None:
    (last,) = job([0.9, 0.9, 0.9, 0.6], world_size=32)[3:]
    seen, table = judged(last, 8)
    bill = make_bill(seen, table.hardware, Prices(builtin()), CONFIG.cohort.by)

    assert bill.stragglers[0].node == ("c", "n3")
    assert bill.stragglers[0].severity == pytest.approx(1 / 3, abs=0.01)


def test_a_late_rank_s_node_costs_its_job_the_share_of_time_that_is_lost_to_it() -> None:
    """The job reports no world size; that collectives wait for one of its nodes suffices."""
    seen, table = snapshot(job([1.0, 1.0, 1.0, 1.0]))
    bill = make_bill(
        seen,
        table.hardware,
        Prices(builtin()),
        CONFIG.cohort.by,
        {node_key("c", "n2"): 0.05, node_key("c", "gone"): 1},
    )

    assert [(item.node, item.by, item.share) for item in bill.stragglers] == [
        (("c", "n2"), "collectives", pytest.approx(0.05 * 4 * 8 * 12.29))
    ]
    assert bill.jobs[("c", "j")].waiting == bill.stragglers[0].share


def test_a_node_that_both_accuse_is_billed_once_by_the_larger() -> None:
    seen, table = snapshot(job([1.0, 1.0, 1.0, 0.5], world_size=32))
    bill = make_bill(
        seen,
        table.hardware,
        Prices(builtin()),
        CONFIG.cohort.by,
        {node_key("c", "n3"): 0.1, node_key("c", "n0"): 0.2},
    )

    found = {item.node[1]: (item.by, item.severity) for item in bill.stragglers}
    assert found == {"n3": ("both", 0.5), "n0": ("collectives", 0.2)}
    assert math.fsum(item.share for item in bill.stragglers) == pytest.approx(bill.jobs[("c", "j")].waiting, abs=1e-9)


def test_what_late_ranks_cost_goes_onward_once_a_minute_and_adds_up() -> None:
    ledger, teller = CostLedger(0.0, 0.0), CostExporter(0.0)
    sent = []
    for tick in range(1, 16):
        slow = 0.5 if tick > 2 else 1.0
        ledger.book(bill_of(job([1.0, 1.0, 1.0, slow], world_size=32)), 10.0 * tick, 30.0)
        body = teller.encode(ledger, "USD")
        if body:
            sent.append(ExportMetricsServiceRequest.FromString(body))

    blocks = [block for request in sent for block in request.resource_metrics]
    points = [point for block in blocks for point in block.scope_metrics[0].metrics[0].sum.data_points]
    assert {metric.name for block in blocks for metric in block.scope_metrics[0].metrics} == {metrics.STRAGGLER_COST}
    assert [point.time_unix_nano for point in points] == sorted({point.time_unix_nano for point in points})
    assert points[0].as_double == 0.0
    assert points[-1].as_double == pytest.approx(ledger.stragglers[node_key("c", "n3")].share)
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"gpu_model": "NVIDIA L4 24GB", "gpu_count": 4}, ("aws", "NVIDIA L4 24GB", 16)),
        ({"provider": "", "gpu_count": 8}, ("", "NVIDIA H100 80GB HBM3", 32)),
        ({"gpu_model": "", "gpu_count": 0}, ("aws", "", 4)),
    ],
)
def test_a_missing_rate_is_said(fields: dict[str, Any], missing: tuple[str, str, int]) -> None:
    bill = bill_of(job([1.0, 1.0, 1.0, 0.5], world_size=32, **fields))

    assert dict(bill.missing) == {missing[:2]: missing[2]}
    assert bill.jobs[("c", "j")].unpriced_gpus == missing[2]
    assert [(item.share, item.unpriced_gpus) for item in bill.stragglers] == [(0.0, missing[2])]
    ledger = CostLedger(0.0, 0.0)
    ledger.book(bill, 10.0, 30.0)
    assert ledger.stragglers[node_key("c", "n3")].unpriced_gpus == missing[2]


def test_rules_decide_about_the_provider() -> None:
    prices = Prices(parse("fallback_rate: 0\nproviders: {home: {NVIDIA H100 80GB HBM3: 1}}"),
                    parse_providers("- {provider: home, nodes: [n0, n1]}"))  # fmt: skip
    bill = bill_of(job([1.0, 1.0, 1.0]), prices)

    assert bill.jobs[("c", "j")].cost == pytest.approx(16)
    assert dict(bill.missing) == {("aws", "NVIDIA H100 80GB HBM3"): 8}


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.05, 1), min_size=3, max_size=12), st.booleans(), st.floats(0, 20)),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_over_time_shares_add_up_to_the_waiting(ticks: list[tuple[list[float], bool, float]]) -> None:
    ledger = CostLedger(0.0, 0.0)
    now = 0.0
    for score_table, synchronised, seconds in ticks:
        now += seconds
        ledger.book(bill_of(job(score_table, world_size=8 * synchronised)), now, 30.0)

    total = ledger.sums()["c"]
    assert math.fsum(account.share for account in ledger.stragglers.values()) == pytest.approx(
        total.waiting, abs=1e-9
    )
    assert total.waiting <= total.cost + 1e-9


def test_a_gap_is_not_charged_and_forgotten_accounts_stay_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = CostLedger(0.0, 0.0)
    ledger.book(bill_of(job([1.0, 1.0, 1.0, 0.5], world_size=32)), 1e6, 3600.0)

    assert ledger.sums()["c"].cost == pytest.approx(4 * 8 * 12.29)
    monkeypatch.setattr("ingero_fleet.cost.ledger.MAX_STRAGGLERS", 0)
    monkeypatch.setattr("ingero_fleet.cost.ledger.MAX_JOBS", 0)
    ledger.book(Bill(), 1e6, 3600.0)
    assert not ledger.stragglers
    assert not ledger.jobs
    assert ledger.closed_shares["c"] == pytest.approx(ledger.sums()["c"].waiting)


def test_clusters_that_come_and_go_leave_neither_memory_nor_series(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_JOBS", 5), ("MAX_STRAGGLERS", 5), ("MAX_CLUSTERS", 10)):
        monkeypatch.setattr(f"ingero_fleet.cost.ledger.{name}", value)
    monkeypatch.setattr("ingero_fleet.cost.tracker.MAX_SERIES", 8)
    tracker = CostTracker(CostConfig(), [], CONFIG.cohort.by, 0.0)
    ledger = tracker.ledger
    for number in range(100):
        key, node = (f"c{number}", "j"), node_key(f"c{number}", "n")
        straggler = StragglerCost(node, key, 0.5, 1.0, 1.0)
        ledger.book(Bill({key: JobBill(key, 1, 8, True, 2.0, 1.0, 0)}, [straggler]), 3600.0 * (number + 1), 3600.0)

    assert len(ledger.closed_jobs) == len(ledger.closed_shares) == 11
    assert sum(account.cost for account in ledger.sums().values()) == pytest.approx(200.0)
    assert ledger.sums()["c99"] == JobAccount(2.0, 1.0, 360_000.0)
    assert tracker.summary()["cost"] == tracker.answer()["cost"] == pytest.approx(200.0)
    assert tracker.answer()["forgotten_shares"] == pytest.approx(95.0)
    paged = tracker.answer(limit=2, offset=1)
    assert [(len(paged[name]), paged[f"{name}_total"]) for name in ("jobs", "culprits")] == [(2, 5)] * 2
    assert paged["jobs"] == tracker.answer()["jobs"][1:3] and paged["cost"] == tracker.answer()["cost"]
    assert [job["cluster_id"] for job in tracker.answer("c99", "j")["jobs"]] == ["c99"]
    assert tracker.answer("c99", "another")["culprits"] == []
    page = exposition([TableCollector(COST, lambda: tracker)]).decode()
    assert page.count("\ningero_fleet_job_cost_total{") == 8
    assert 'ingero_fleet_job_cost_total{cluster_id="",currency="USD"} 170.0' in page


def test_a_booking_does_not_disturb_who_reads_meanwhile() -> None:
    ledger, bill = CostLedger(0.0, 0.0), bill_of(job([1.0, 1.0, 1.0, 0.5], world_size=32))
    ledger.book(bill, 10.0, 30.0)
    reading = [iter(ledger.jobs.items()), iter(ledger.stragglers.items())]
    other = ("c", "another")
    ledger.book(Bill({other: JobBill(other, 1, 8, True, 2.0, 1.0, 0)}, bill.stragglers), 20.0, 30.0)

    assert [len(list(items)) for items in reading] == [1, 1]


def push(service: Running, reports: list[HealthReport]) -> None:
    for report in reports:
        web.post(
            service.url("otlp/http", routes.OTLP_METRICS),
            content=encode_report(report).SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        )


def test_a_running_fleet_says_what_its_straggler_costs(tmp_path: Path) -> None:
    rates = tmp_path / "rates.yaml"
    rates.write_text("currency_name: EUR\nfallback_rate: 0\nproviders: {ec2: {NVIDIA H100 80GB HBM3: 3600}}\n")
    change = {"processors": {"cost": {"rates_file": str(rates)}, "ingero": {"push_interval": "1s"}}}
    with fleet(tmp_path, change) as service:

        def answer(slowest: float = 0.3) -> dict[str, Any]:
            push(service, job([0.9, 0.9, 0.9, slowest], world_size=32))
            push(service, [HealthReport(node_id="odd", cluster_id="d", score=0.9, gpu_model="Mystery", gpu_count=2)])
            got = web.get(service.url("threshold", f"{routes.FLEET_COST}?cluster_id=c"))
            return dict(got.json()) if got.status_code == 200 else {}

        def known() -> bool:
            answer(0.9)
            got = web.get(service.url("threshold", f"{routes.FLEET_VERDICTS}?cluster_id=c"))
            nodes = got.json()["nodes"] if got.status_code == 200 else []
            return [(node["verdict"] or {}).get("state") for node in nodes] == ["healthy"] * 4

        wait_until(known, "everybody to be known")
        wait_until(lambda: bool(answer().get("waiting")), "money spent waiting")
        found = answer()

        assert found["currency"] == "EUR"
        assert [straggler["node_id"] for straggler in found["culprits"]] == ["n3"]
        assert found["culprits"][0]["share"] == pytest.approx(found["waiting"])
        severity = found["culprits"][0]["severity"]
        assert severity == pytest.approx(2 / 3, abs=0.05)
        assert found["jobs"][0]["waiting_per_hour"] == pytest.approx(severity * 32 * 3600, rel=1e-4)
        assert found["missing_rates"][0]["gpu_model"] == "Mystery"
        page = web.get(service.url("prometheus", "/metrics")).text
        assert 'ingero_fleet_waiting_cost_total{cluster_id="c",currency="EUR"}' in page
        assert 'ingero_fleet_gpus_without_rate{gpu_model="Mystery",provider=""} 2.0' in page


CAFE = "fallback_rate: 0\n# Café\nproviders: {}\n".encode("latin-1")


@pytest.mark.parametrize("setting", ["rates_file", "providers_file"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CAFE, "line 2 is not UTF-8 text (byte 23 is 0xE9): save it as UTF-8, for example with `iconv"),
        ("providers: {}".encode("utf-16"), "line 1 is not UTF-8 text (byte 1 is 0xFF)"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["Latin-1", "UTF-16", "missing"],
)
def test_a_file_that_is_no_text_is_named_with_the_place_and_the_cure(
    tmp_path: Path, setting: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / "table.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(SettingsError) as caught:
        read_prices(CostConfig.model_validate({setting: str(file)}))

    assert str(caught.value).startswith(f"processors.cost.{setting} {file}: {words}")


def test_a_rates_file_that_is_wrong_stops_the_start(tmp_path: Path) -> None:
    rates = tmp_path / "rates.yaml"
    rates.write_text("providers: {}")
    change = {"processors": {"cost": {"rates_file": str(rates)}}}

    with pytest.raises(AssertionError, match="fallback_rate: is required"), fleet(tmp_path, change):
        pass
