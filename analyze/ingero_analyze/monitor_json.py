"""Answers of services that monitor hosts, as their APIs and command lines write them: a row for each point. Pure.

Datadog: https://docs.datadoghq.com/api/latest/metrics/ (query of timeseries points, versions 1 and 2). CloudWatch:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]


def rows_of_monitor(whole: Any) -> list[Row] | None:
    """The rows of an answer of Datadog or CloudWatch, with `time` and `value`; `None` for any other document.

    Tags are cells. Of labels of CloudWatch the word that all share, such as `i-0a1 GPUUtilization`, is the metric.
    """
    for service in (_datadog, _datadog_2, _cloudwatch):
        try:
            if rows := list(service(whole)):
                return rows
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def _datadog(whole: Any) -> Iterator[Row]:
    for one in whole["series"]:
        around = _tags(one.get("tag_set") or str(one.get("scope", "")).split(","))
        if one.get("metric"):
            around["metric"] = one["metric"]
        for time, value in one["pointlist"]:
            yield {"time": int(time), "value": value, **around}


def _datadog_2(whole: Any) -> Iterator[Row]:
    found = whole["data"]["attributes"]
    for one, values in zip(found["series"], found["values"], strict=True):
        around = _tags(one["group_tags"])
        for time, value in zip(found["times"], values, strict=True):
            yield {"time": time, "value": value, **around}


def _cloudwatch(whole: Any) -> Iterator[Row]:
    results = whole["MetricDataResults"]
    around = _labels([one["Label"] for one in results])
    for one, cells in zip(results, around, strict=True):
        for time, value in zip(one["Timestamps"], one["Values"], strict=True):
            yield {"time": time, "value": value, **cells}


def _tags(tags: Iterable[str]) -> Row:
    """Cells of tags such as `host:n1`; what has no name is none."""
    pairs = (tag.split(":", 1) for tag in tags if ":" in tag)
    return {name.strip(): text.strip() for name, text in pairs}


def _labels(labels: list[str]) -> list[Mapping[str, str]]:
    """By series its node, and its metric if all labels begin or end with one word that says that."""
    words = [label.split() for label in labels]
    for place, rest in ((-1, slice(None, -1)), (0, slice(1, None))):
        if len(set(labels)) > 1 and len({each[place] for each in words}) == 1:
            return [{"node": " ".join(each[rest]), "metric": each[place]} for each in words]
    return [{"node": label} for label in labels]
