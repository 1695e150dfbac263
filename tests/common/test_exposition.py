"""Pages of metrics say what Prometheus' own parser reads back."""

import math
import os
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingero_kit.exposition import Family, exposition
from ingero_kit.metrics_table import MetricRow, TableCollector, counter, gauge
from ingero_kit.process_metrics import PROCESS
from ingero_testing.metrics import sample


class Families:
    """A collector of given families."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> tuple[Family, ...]:
        return self._families


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "", "ü{,}="])
def test_every_text_of_a_label_is_read_back(text: str) -> None:
    family = Family("gauge", "x", f"About {text!r}", ("second", "first"))
    family.add((text, "1"), 1)

    assert sample(Families(family), "x", first="1", second=text) == 1


@pytest.mark.parametrize("value", [0, 1, -1.5, 1e300, 123456789012, 1e-9, math.inf, -math.inf])
def test_every_number_is_read_back(value: float) -> None:
    family = Family("untyped", "x", "Numbers.")
    family.add((), value)

    assert sample(Families(family), "x") == value


def test_what_is_not_a_number_says_so() -> None:
    family = Family("gauge", "x", "Numbers.")
    family.add((), math.nan)

    assert exposition([Families(family)]).splitlines()[-1] == b"x NaN"


def test_a_help_text_stays_on_its_line() -> None:
    page = exposition([Families(Family("gauge", "x", "one\ntwo \\n"))])

    assert page == b"# HELP x one\\ntwo \\\\n\n# TYPE x gauge\n"


def test_a_counter_has_its_suffix_on_every_line() -> None:
    page = exposition(
        [TableCollector((counter("pushes", "Pushes.", lambda _: {"b": 2, "a": 1}, "kind"),), lambda: 0)]
    )

    assert page.decode().splitlines() == [
        "# HELP pushes_total Pushes.", "# TYPE pushes_total counter",
        'pushes_total{kind="a"} 1.0', 'pushes_total{kind="b"} 2.0',
    ]  # fmt: skip


def test_a_histogram_is_cumulative_and_ends_without_a_bound() -> None:
    family = Family("histogram", "copy_ms", "Copies.", ("way",))
    family.add_histogram(("up",), [(0.5, 1), (10, 3), (math.inf, 4)], 31.5)

    (found,) = text_string_to_metric_families(exposition([Families(family)]).decode())

    assert [(one.name, one.labels.get("le"), one.value) for one in found.samples] == [
        ("copy_ms_bucket", "0.5", 1), ("copy_ms_bucket", "10", 3), ("copy_ms_bucket", "+Inf", 4),
        ("copy_ms_count", None, 4), ("copy_ms_sum", None, 31.5),
    ]  # fmt: skip


def test_no_value_is_no_sample_and_values_for_other_labels_are_an_error() -> None:
    nothing: MetricRow[int] = gauge("x", "Nothing.", lambda _: None)
    assert exposition([TableCollector([nothing], lambda: 0)]) == b"# HELP x Nothing.\n# TYPE x gauge\n"

    with pytest.raises(ValueError, match="zip"):
        Family("gauge", "x", "Labels.", ("one",)).add(("1", "2"), 1)


def test_a_process_reports_itself() -> None:
    began = sample(PROCESS, "process_start_time_seconds")
    used = sample(PROCESS, "process_resident_memory_bytes")
    reserved = sample(PROCESS, "process_virtual_memory_bytes")
    opened = sample(PROCESS, "process_open_fds")
    most = sample(PROCESS, "process_max_fds")

    assert began and 0 < began <= time.time()
    assert used and reserved and 1 << 20 < used < reserved
    assert opened and most and 3 <= opened <= most
    assert (sample(PROCESS, "process_cpu_seconds_total") or 0) > 0
    page = exposition([PROCESS])
    assert b"python_info{" in page
    assert f'\ningero_build_info{{version="{version("ingero")}"}} 1.0\n'.encode() in page
    with Path(os.devnull).open():
        assert sample(PROCESS, "process_open_fds") == opened + 1
