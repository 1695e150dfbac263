"""Answers of databases whose rows are lists beside the names of columns: a row of cells for each. Pure.

InfluxDB 1: https://docs.influxdata.com/influxdb/v1/guides/query_data/. Log Analytics and Data Explorer of Azure:
https://learn.microsoft.com/en-us/rest/api/loganalytics/query/get. ClickHouse:
https://clickhouse.com/docs/interfaces/formats (JSON, JSONCompact).
"""

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]


def rows_of_database(whole: Any) -> list[Row] | None:
    """The rows of such an answer; `None` for any other document. Tags of a series are cells."""
    if not isinstance(whole, dict):
        return None
    for database in (_influx, _kusto, _clickhouse):
        try:
            if rows := list(database(whole)):
                return rows
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def _influx(whole: Row) -> Iterator[Row]:
    for result in whole["results"]:
        for series in result["series"]:
            for cells in series["values"]:
                yield dict(zip(series["columns"], cells, strict=True)) | series.get("tags", {})


def _kusto(whole: Row) -> Iterator[Row]:
    table = whole["tables"][0]
    names = [column["name"] for column in table["columns"]]
    for cells in table["rows"]:
        yield dict(zip(names, cells, strict=True))


def _clickhouse(whole: Row) -> Iterator[Row]:
    names = [column["name"] for column in whole["meta"]]
    for cells in whole["data"]:
        yield cells if isinstance(cells, dict) else dict(zip(names, cells, strict=True))
