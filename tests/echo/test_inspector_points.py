"""Points of NCCL Inspector, which name GPUs instead of ranks, count as collectives."""

from pathlib import Path

import pytest

from ingero_contract import attributes, metrics
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.books import Books

COLLECTIVE = {
    attributes.INSPECTOR_COMM: "0xa", attributes.INSPECTOR_OP: "AllReduce", attributes.INSPECTOR_NRANKS: "4",
    attributes.INSPECTOR_SIZE: "8000000", attributes.INSPECTOR_GPU: "GPU0",
}  # fmt: skip


def points(own: dict[str, str]) -> list[telemetry.Point]:
    """What the plugin sends for one collective that took 2 ms."""
    return [(metrics.INSPECTOR_EXEC_TIME, 2000.0, own), (metrics.INSPECTOR_BANDWIDTH, 4.0, own)]


@pytest.mark.parametrize(("verbose", "rows"), [(True, 1), (False, 0)])
def test_durations_and_bytes_of_nccl_inspector_are_summarised(tmp_path: Path, verbose: bool, rows: int) -> None:
    books = Books(tmp_path)
    try:
        for number in range(20):
            own = {**COLLECTIVE, attributes.INSPECTOR_SEQ: str(number)}
            if not verbose:
                del own[attributes.INSPECTOR_COMM]
            at = books.now - number * 10**9
            books.put(Signal.METRICS, telemetry.gauges(points(own), "c", "n", at))
        answer = books.ask("nccl_collective_summary")
    finally:
        books.close()

    assert len(answer["rows"]) == rows
    for row in answer["rows"]:
        assert (row["communicator"], row["operation"], row["ranks"], row["calls"]) == ("0xa", "allreduce", 4, 20)
        assert (row["p50_ms"], row["bytes"], row["gigabytes_per_second"]) == (2.0, 20 * 8e6, 4.0)
        assert answer["summary"] == "20 collectives of 1 kind; most: allreduce."
