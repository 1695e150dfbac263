"""Answers of services that monitor hosts, as their APIs and command lines write them: a row for each point. Pure.

Datadog: https://docs.datadoghq.com/api/latest/metrics/ (query of timeseries points, versions 1 and 2). CloudWatch:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
Graphite: https://graphite.readthedocs.io/en/latest/render_api.html (format=json). OpenTSDB:
https://opentsdb.net/docs/build/html/api_http/query/index.html. Cloud Monitoring of Google:
https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.timeSeries/list. Elasticsearch:
https://www.elastic.co/guide/en/elasticsearch/reference/current/search-search.html. Grafana:
https://grafana.com/docs/grafana/latest/developers/http_api/data_source/ (frames of a query).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]


def rows_of_monitor(whole: Any) -> list[Row] | None:
    """The rows of an answer of such a service, with `time` and `value`, or the documents that it found; `None` for
    any other document.

    Tags are cells. Of labels of CloudWatch the word that all share, such as `i-0a1 GPUUtilization`, is the metric; of
    those of Graphite the last part, and what differs is the node.
    """
    for service in (_datadog, _datadog_2, _cloudwatch, _graphite, _opentsdb, _google, _elasticsearch, _grafana):
        try:
            if rows := list(service(whole)):
                return rows
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def document_of(found: Row) -> Row:
    """The document in what a search of Elasticsearch found; any other object itself."""
    source = found.get("_source")
    return source if isinstance(source, dict) and "_index" in found else found


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


def _graphite(whole: Any) -> Iterator[Row]:
    paths = [str(one["target"]).split(".") for one in whole]
    alike = len(paths) > 1 and len(set(map(len, paths))) == 1
    differ = [len(set(parts)) > 1 for parts in zip(*paths, strict=True)] if alike else []
    for one, path in zip(whole, paths, strict=True):
        around: Row = {"node": ".".join(path)}
        if any(differ) and not differ[-1]:
            around = {
                "node": ".".join(part for part, own in zip(path, differ, strict=True) if own), "metric": path[-1]
            }  # fmt: skip
        for value, time in one["datapoints"]:
            yield {"time": time, "value": value, **around}


def _opentsdb(whole: Any) -> Iterator[Row]:
    for one in whole:
        points = one["dps"]
        for time, value in points.items() if isinstance(points, dict) else points:
            yield {"time": time, "value": value, "metric": one["metric"], **one["tags"]}


def _google(whole: Any) -> Iterator[Row]:
    for one in whole["timeSeries"]:
        around = {**one["resource"].get("labels", {}), **one["metric"].get("labels", {})}
        for point in one["points"]:
            (value,) = point["value"].values()
            yield {"time": point["interval"]["endTime"], "value": value, "metric": one["metric"]["type"], **around}


def _elasticsearch(whole: Any) -> Iterator[Row]:
    for one in whole["hits"]["hits"]:
        yield dict(one["_source"])


def _grafana(whole: Any) -> Iterator[Row]:
    for result in whole["results"].values():
        for frame in result["frames"]:
            fields, values = frame["schema"]["fields"], frame["data"]["values"]
            yield from _of_frame(fields, values)


def _of_frame(fields: list[Any], values: list[Any]) -> Iterator[Row]:
    """Rows of a frame: of each value with labels one; those of a table have its names."""
    plain = [place for place, field in enumerate(fields) if not field.get("labels")]
    for cells in zip(*values, strict=True):
        shared = {fields[place]["name"]: cells[place] for place in plain}
        if len(plain) == len(fields):
            yield shared
        for place in range(len(fields)):
            if place not in plain:
                yield {**shared, "value": cells[place], "metric": fields[place]["name"], **fields[place]["labels"]}


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
