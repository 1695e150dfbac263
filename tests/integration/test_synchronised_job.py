"""A real job in lockstep and a real Fleet: whoever is late is named."""

from pathlib import Path

import pytest

from scripts.e2e import Row, play, table
from scripts.lab import Lab, LabFailed, Site
from scripts.synchronised import Jobs, Plan


@pytest.fixture
def lab(tmp_path: Path) -> object:
    found = Lab(tmp_path)
    yield found
    found.stop()


def test_the_late_rank_is_named_by_what_the_ranks_push(lab: Lab) -> None:
    plan = Plan(ranks=4, late=2, step_seconds=0.03, extra=1.0)
    jobs = Jobs(Site(lab, "lab", 0.2, ()), plan, traced=False)
    jobs.site.start_fleet()
    jobs.start()

    outcome = jobs.watch(settle=0.5)

    assert outcome.seconds is not None
    assert outcome.wrong == set()
    assert outcome.why.startswith("Rank 2 came last in ")


def test_a_process_that_ends_by_itself_is_named_with_its_last_words(lab: Lab) -> None:
    lab.start("short", "sh", "-c", "echo over; exit 3")

    with pytest.raises(LabFailed, match="short ended with status 3: over"):
        lab.wait("nothing", lambda: False)


def test_a_case_that_fails_is_a_row_and_keeps_no_other_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[str] = []

    def broken(say: object, lab: Lab) -> list[Row]:
        raise LabFailed("waited in vain")

    fine = Row("b", "what", "x", "x", 1.0, True)
    rows = play([{"a": broken, "b": lambda say, lab: [fine]}], said.append)

    assert [row.ok for row in rows] == [False, True]
    assert rows[0].got.startswith("waited in vain; the logs are in ")
    assert said[0].startswith("a: ")
    assert table(rows).row_count == 2
