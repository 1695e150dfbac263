"""How far an EchoStore is sealed: figures that change once a minute at most, and a condition with the cure."""

import pytest

from ingero_contract import echo
from ingero_operator.api.shared_tables import TableSpec
from ingero_operator.conditions import yes
from ingero_operator.sealing import SEALED, SealingReport, figures, parse_sealing, sealing_current

NOW = 1_800_000_000.0
TABLE = TableSpec.model_validate(
    {"catalog": [{"name": "type", "value": "sql"}], "warehouse": "s3://bucket", "sealInterval": "30s"}
)


def report(behind: float = 40, failure: str | None = None) -> SealingReport:
    found = parse_sealing({echo.SEALING: {"until": NOW - behind, "files": 3, "failure": failure}}, NOW)
    assert found
    return found


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, *({echo.SEALING: sealing} for sealing in (
        None, 1, {}, {"until": "1", "files": 1}, {"until": float("nan"), "files": 1}, {"until": 1.0, "files": -1},
    ))],
)  # fmt: skip
def test_an_answer_that_says_nothing_usable_is_none(answer: object) -> None:
    assert parse_sealing(answer, NOW) is None


def test_polls_within_a_minute_report_the_same_figures() -> None:
    first = {parse_sealing({echo.SEALING: {"until": NOW + step, "files": 3}}, NOW + step) for step in range(0, 60, 7)}

    assert len(first) == 1


def test_the_writer_that_is_furthest_behind_counts() -> None:
    shown = figures([report(), None, report(behind=250)])

    assert shown == {"sealedUntil": "2027-01-15T07:55:00Z", "lagSeconds": 240, "files": 6}
    assert figures([None]) is None


@pytest.mark.parametrize(
    ("failure", "reason", "cure"),
    [
        ("credentials_refused", "CredentialsRefused", "spec.table.credentialsSecret"),
        ("tables_unavailable", "TablesUnavailable", "spec.table.egress"),
        ("local", "DatabaseFails", "seal_failed"),
        (None, "SealingBehind", "resources.cpu"),
        ("what a newer Echo says", "SealingBehind", "resources.cpu"),
    ],
)
def test_sealing_that_stands_still_is_reported_with_the_cure(failure: str | None, reason: str, cure: str) -> None:
    found = sealing_current(TABLE, [report(), report(behind=600, failure=failure)])

    assert (found.status, found.reason) == ("False", reason)
    assert cure in found.message and "after 2027-01-15T07:50:00Z" in found.message


def test_a_failure_between_two_seals_changes_nothing() -> None:
    assert sealing_current(TABLE, [report(failure="tables_unavailable")]).holds


def test_a_taken_shard_is_reported_at_once() -> None:
    found = sealing_current(TABLE, [report(behind=600), report(failure=echo.SHARD_TAKEN)])

    assert (found.status, found.reason) == ("False", "ShardTaken")


def reading(away: float | None, behind: float = 40) -> SealingReport:
    said = {"until": NOW - behind, "files": 3, "failure": None, "source_away_since": away}
    found = parse_sealing({echo.SEALING: said}, NOW)
    assert found
    return found


def test_a_stream_that_cannot_be_read_for_a_minute_is_reported_although_sealing_is_current() -> None:
    found = sealing_current(TABLE, [reading(None), reading(NOW - 90)])

    assert (found.status, found.reason) == ("False", "StreamUnreadable")
    assert "since 2027-01-15T07:58:30Z" in found.message and "credentialsSecret" in found.message
    assert sealing_current(TABLE, [reading(None), reading(NOW - 30)]).holds
    assert sealing_current(TABLE, [reading(NOW - 90, behind=600)]).reason == "SealingBehind"


def test_without_an_answer_the_last_condition_stays_or_is_unknown() -> None:
    before = yes(SEALED, "Sealing", "as it was")

    assert sealing_current(TABLE, [None], before) == before
    assert sealing_current(TABLE, [report(), None]).status == "Unknown"
