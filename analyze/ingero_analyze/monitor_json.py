"""Answers of services that monitor hosts, as their APIs and command lines write them: a row for each point. Pure.

Datadog: https://docs.datadoghq.com/api/latest/metrics/ (query of timeseries points, versions 1 and 2). CloudWatch:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
Graphite: https://graphite.readthedocs.io/en/latest/render_api.html (format=json). OpenTSDB:
https://opentsdb.net/docs/build/html/api_http/query/index.html. Cloud Monitoring of Google:
https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.timeSeries/list. Elasticsearch:
https://www.elastic.co/guide/en/elasticsearch/reference/current/search-search.html (hits, and aggregations). Grafana:
https://grafana.com/docs/grafana/latest/developers/http_api/data_source/ (frames of a query), and what its inspector
of a panel saves. Azure Monitor: https://learn.microsoft.com/en-us/rest/api/monitor/metrics/list. Dynatrace:
https://docs.dynatrace.com/docs/dynatrace-api/environment-api/metric-v2/get-data-points. New Relic:
https://docs.newrelic.com/docs/apis/nerdgraph/ (facets of timeseries). Netdata: https://learn.netdata.cloud/ (data in
JSON). Zabbix: https://www.zabbix.com/documentation/current/en/manual/api/reference/history/get
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Row = dict[str, Any]


def rows_of_monitor(whole: Any) -> list[Row] | None:
    """The rows of an answer of such a service, with `time` and `value`, or the documents that it found; `None` for
    any other document.

    Tags are cells. Of labels of CloudWatch the word that all share, such as `i-0a1 GPUUtilization`, is the metric; of
    those of Graphite the last part, and what differs is the node.
    """
    for service in _SERVICES:
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


def batch_of(found: Row) -> list[Row]:
    """The metrics of a batch of Telegraf, which has one of them in a line of its own otherwise; else empty."""
    metrics = found.get("metrics")
    names = {"fields", "name", "tags", "timestamp"}
    listed = metrics if len(found) == 1 and isinstance(metrics, list) else []
    return listed if all(isinstance(each, dict) and each.keys() == names for each in listed) else []


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


def _cloudwatch_statistics(whole: Any) -> Iterator[Row]:
    for point in whole["Datapoints"]:
        value = next(point[name] for name in ("Average", "Sum", "Maximum", "Minimum") if name in point)
        yield {"time": point["Timestamp"], "value": value, "metric": whole["Label"]}


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
    for one in whole["timeSeries"] if isinstance(whole, dict) else whole:
        around = {**one["resource"].get("labels", {}), **one["metric"].get("labels", {})}
        for point in one["points"]:
            (value,) = point["value"].values()
            yield {"time": point["interval"]["endTime"], "value": value, "metric": one["metric"]["type"], **around}


def _elasticsearch(whole: Any) -> Iterator[Row]:
    for one in whole["hits"]["hits"]:
        yield dict(one["_source"])


def _elasticsearch_buckets(whole: Any) -> Iterator[Row]:
    """A row for each innermost bucket: the time of its date histogram, and its terms, of which one alone, or that
    called so, is the node."""
    rows = list(_of_buckets(whole["aggregations"], {}))
    terms = list(dict.fromkeys(name for _, around in rows for name in around if name != "time"))
    for values, around in rows:
        yield {"node" if len(terms) == 1 else name: key for name, key in around.items() if name != "time"} | {
            "time": around["time"], **values,
        }  # fmt: skip


def _of_buckets(aggregations: Row, around: Row) -> Iterator[tuple[Row, Row]]:
    """By innermost bucket the values of its metrics, and the keys of it and of those around it."""
    named = {name: found for name, found in aggregations.items() if isinstance(found, dict)}
    values = {name: found["value"] for name, found in named.items() if "value" in found}
    nested = {name: found["buckets"] for name, found in named.items() if "buckets" in found}
    if values and not nested:
        yield values, around
    for name, buckets in nested.items():
        for bucket in buckets:
            key, dated = bucket["key"], "key_as_string" in bucket and isinstance(bucket["key"], int)
            keys = key if isinstance(key, dict) else {"time" if dated else name: key}
            yield from _of_buckets(bucket, around | keys)


def _grafana(whole: Any) -> Iterator[Row]:
    frames = (
        whole
        if isinstance(whole, list)
        else [frame for result in whole["results"].values() for frame in result["frames"]]
    )
    for frame in frames:
        yield from _of_frame(frame["schema"]["fields"], frame["data"]["values"])


def _grafana_panel(whole: Any) -> Iterator[Row]:
    for frame in whole["series"]:
        fields = [
            field | {"name": (field.get("labels") or {}).get("__name__", field["name"])} for field in frame["fields"]
        ]
        yield from _of_frame(fields, [field["values"] for field in fields])


def _azure(whole: Any) -> Iterator[Row]:
    for one in whole["value"]:
        path = str(one["id"]).split("/providers/Microsoft.Insights")[0]
        for series in one["timeseries"]:
            around = {each["name"]["value"]: each["value"] for each in series.get("metadatavalues") or ()}
            for point in series["data"]:
                values = (point.get(name) for name in ("average", "total", "maximum", "minimum"))
                value = next((value for value in values if value is not None), None)
                yield {
                    "time": point["timeStamp"], "value": value, "metric": one["name"]["value"],
                    "node": path.rpartition("/")[2], **around,
                }  # fmt: skip


def _dynatrace(whole: Any) -> Iterator[Row]:
    for metric in whole["result"]:
        for one in metric["data"]:
            around = {"node": "/".join(one["dimensions"]), "metric": metric["metricId"].partition(":")[0]}
            for time, value in zip(one["timestamps"], one["values"], strict=True):
                yield {"time": time, "value": value, **around}


def _newrelic(whole: Any) -> Iterator[Row]:
    for facet in whole["facets"]:
        name = facet["name"] if isinstance(facet["name"], str) else "/".join(facet["name"])
        for point in facet["timeSeries"]:
            (value,) = point["results"][0].values()
            yield {"time": point["beginTimeSeconds"], "value": value, "node": name}


def _netdata(whole: Any) -> Iterator[Row]:
    for cells in whole["data"]:
        if isinstance(whole["labels"], list) and isinstance(cells, list):
            yield dict(zip(whole["labels"], cells, strict=True))


def _zabbix(whole: Any) -> Iterator[Row]:
    for point in whole["result"]:
        yield {"time": point["clock"], "value": point["value"], "node": point["itemid"]}


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


_SERVICES: Final = (
    _datadog, _datadog_2, _cloudwatch, _cloudwatch_statistics, _graphite, _opentsdb, _google, _elasticsearch,
    _elasticsearch_buckets, _grafana, _grafana_panel, _azure, _dynatrace, _newrelic, _netdata, _zabbix,
)  # fmt: skip
