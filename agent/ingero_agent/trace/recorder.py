"""Writes a timeline to a file that `ingero-fleet diagnose` reads: CSV row by row, Parquet in groups of rows."""

import csv
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ingero_agent.trace.timeline import COLUMNS, TimelineRow

GROUP_ROWS = 65536
PARQUET = (".parquet", ".pq")


class CsvRecorder:
    """Writes CSV. Every call reaches the file, so that rows survive a crash."""

    def __init__(self, file: Path) -> None:
        self._stream = file.open("w", newline="")
        self._writer = csv.writer(self._stream, lineterminator="\n")
        self._writer.writerow(COLUMNS)
        self._stream.flush()

    def write(self, rows: Iterable[TimelineRow]) -> None:
        """Append; microseconds of starts, nanoseconds of durations."""
        for row in rows:
            values = list(astuple(row))
            values[3:5] = f"{row.start:.6f}", f"{row.duration:.9f}"
            self._writer.writerow(["" if value is None else value for value in values])
        self._stream.flush()

    def close(self) -> None:
        """Finish."""
        self._stream.close()


class ParquetRecorder:
    """Writes Parquet. Rows are kept until a group is full; the file can be read once it is closed."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        number, text, seconds = pa.int64(), pa.string(), pa.float64()
        kinds = (number, text, text, seconds, seconds, number, text, number)
        self._schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
        self._writer: Any = parquet.ParquetWriter(file, self._schema)
        self._rows: list[TimelineRow] = []

    def write(self, rows: Iterable[TimelineRow]) -> None:
        """Append."""
        self._rows.extend(rows)
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left and finish."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            columns = zip(*(astuple(row) for row in self._rows), strict=True)
            self._writer.write_table(pa.table([list(column) for column in columns], schema=self._schema))
            self._rows = []


TimelineRecorder = CsvRecorder | ParquetRecorder


def open_recorder(file: Path) -> TimelineRecorder:
    """Open a recorder by the file's suffix. Raises `OSError`, and `ImportError` where Parquet needs pyarrow."""
    return ParquetRecorder(file) if file.suffix.lower() in PARQUET else CsvRecorder(file)
