"""A real job in lockstep, seen through eBPF and judged by a real Fleet."""

from pathlib import Path

import pytest

from scripts.lab import Lab, Site
from scripts.synchronised import Jobs, Plan


@pytest.mark.ebpf
def test_the_late_rank_of_unmodified_processes_is_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    try:
        jobs = Jobs(Site(lab, "lab", 0.2, ()), Plan(ranks=4, late=2, step_seconds=0.03, extra=1.0), traced=True)
        jobs.site.start_fleet()
        jobs.start()

        outcome = jobs.watch(settle=0.5)
    finally:
        lab.stop()

    assert outcome.seconds is not None
    assert outcome.wrong == set()
