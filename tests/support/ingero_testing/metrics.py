"""Reads pages of metrics with Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from ingero_kit.exposition import Collector, exposition


def sample(collector: Collector, name: str, **labels: str) -> float | None:
    """The sample with this name and these labels, `None` where the page has none."""
    for family in text_string_to_metric_families(exposition([collector]).decode()):
        for one in family.samples:
            if (one.name, one.labels) == (name, labels):
                return float(one.value)
    return None
