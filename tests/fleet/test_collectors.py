"""The page of findings stays small and in order whatever nodes call themselves."""

import shutil
import subprocess

import pytest

from ingero_fleet import threshold_rule
from ingero_fleet.collectors import MAX_COHORT_SERIES, FindingsCollector
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_kit.exposition import exposition
from ingero_kit.health_report import HealthReport
from ingero_testing.metrics import sample
from ingero_testing.needs import PROMTOOL

CONFIG = IngeroConfig()


def page(jobs: int, label: int = 0) -> FindingsCollector:
    """The page for a node in each job, and two in the last."""
    table = ScoreTable(ScoreLimits(nodes=100_000, clusters=10, ttl_seconds=50), CONFIG.cohort.by)
    for number in [*range(jobs), jobs - 1]:
        job = f"job-{number}" + "x" * label
        table.observe(HealthReport(node_id=f"n{number}-{len(table)}", cluster_id="c", score=0.9, job_id=job), 0.0)
    scores = ScoreSnapshot.take(table, 1.0)
    snapshot = TickSnapshot(scores, threshold_rule.compute(scores, threshold_rule.RuleState(), CONFIG))
    return FindingsCollector(lambda: snapshot, CONFIG.cohort.by)


def test_the_largest_cohorts_have_series_and_the_others_are_counted() -> None:
    collector = page(MAX_COHORT_SERIES + 50)

    found = exposition([collector]).decode()

    assert found.count("\ningero_fleet_active_nodes{") == MAX_COHORT_SERIES
    assert f'cohort="job-{MAX_COHORT_SERIES + 49}"' in found
    assert sample(collector, "ingero_fleet_cohorts_without_series") == 50


def test_the_page_is_bounded_where_every_node_makes_up_long_labels() -> None:
    assert len(exposition([page(3000, 240)])) < 4 * MAX_COHORT_SERIES * 600 + 3001 * 200


def test_promtool_has_nothing_to_say_about_the_findings() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip(PROMTOOL)

    done = subprocess.run(
        [promtool, "check", "metrics"], input=exposition([page(2)]), capture_output=True, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
