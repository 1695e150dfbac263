"""Compares a database with the shared tables that it is sealed into, one day after the other."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero_echo import rollups
from ingero_echo.errors import UserError
from ingero_echo.lake import files, plan
from ingero_echo.lake.layout import DAY, lake_columns, range_rows, restored
from ingero_echo.lake.maintenance import DAY_SECONDS, day_text
from ingero_echo.lake.plan import NOTHING, Boundary
from ingero_echo.lake.sealer import open_lake
from ingero_echo.lake.view import LATEST, LakeFile, Pin, PinnedTable
from ingero_echo.settings import TableConfig
from ingero_echo.tables import TABLES
from ingero_echo.verify import EXAMPLES, Difference, VerifyReport, find_doubled, find_wrong_sums, row_key, within_day

_EVENTS_FIRST: Final = tuple(reversed(plan.ORDER))


def compare(engine: Any, config: TableConfig, folder: Path, report: VerifyReport, first: str, days: set[str]) -> None:
    """Compare rows of the database up to the boundaries with the same rows of the tables, and the tables with
    themselves. `days` are those of the database, from `first` on. Raises `UserError` when that is not possible."""
    _Comparison(engine, config, folder, report).run(first, days)


def own_boundary(
    known: Mapping[str, Boundary], store: str, origin: str | None, copied: int, stores: Iterable[str] = ()
) -> int:
    """The order of arrival up to which a table has the rows of a database, under whatever name they were sealed.

    `stores` are databases whose place it took.
    """
    own = max((found.sealed for found in known.values() if found.store in (store, *stores)), default=NOTHING)
    return max(own, plan.sealed_elsewhere(known.values(), origin, copied))


@dataclass(frozen=True)
class _Copy:
    """A data file on this machine."""

    file: LakeFile
    path: Path


class _Comparison:
    def __init__(self, engine: Any, config: TableConfig, folder: Path, report: VerifyReport) -> None:
        self._engine, self._config, self._folder, self._report = engine, config, folder, report
        self._lake: Any = open_lake(config)
        self._through = dict.fromkeys(TABLES, NOTHING)

    def run(self, first: str, days: set[str]) -> None:
        pins = self._pin({})
        self._check_boundaries(pins)
        sealed = {day_text(file) for pin in pins.values() for file in self._with_times(pin)}
        kept = "" if self._config.retention is None else self._edge(time.time() - self._config.retention)
        for day in sorted(day for day in days | sealed if day >= first and day > kept):
            pins = self._pin(pins)
            for table in _EVENTS_FIRST:
                self._check_day(table, day, pins)

    def _edge(self, moment: float) -> str:
        """The newest day whose files retention may delete while this runs."""
        return time.strftime("%Y-%m-%d", time.gmtime(moment + 3600 - DAY_SECONDS))

    def _pin(self, before: Pin) -> dict[str, PinnedTable]:
        """The present versions. Events first: what they name was sealed before them."""
        return {table: self._lake.pin(table, before.get(table)) for table in _EVENTS_FIRST}

    def _with_times(self, pin: PinnedTable) -> list[LakeFile]:
        return [file for file in pin.files if file.last != LATEST]

    def _check_boundaries(self, pins: Pin) -> None:
        shard = self._config.shard
        store, origin, sealed, copied, before = self._engine.execute(
            "SELECT store::VARCHAR, origin::VARCHAR, sealed, copied, coalesce(predecessors, '') FROM sealing"
        ).fetchall()[0]
        for table in TABLES:
            known = pins[table].boundaries
            self._through[table] = own_boundary(known, store, origin, copied, before.split())
            self._report.tables[table].sealed_through = self._through[table]
            if shard in known and known[shard].store not in (store, *before.split()):
                self._boundary(table, f"the shard {shard} is sealed by another database")
            for file in pins[table].files:
                if file.last == LATEST:
                    self._report.add(Difference("file", table, f"{file.location} does not say its times"))
        through = self._through["events"]
        if sealed > through:
            self._boundary("events", f"the database has sealed through {sealed}, and the table says {through}")
        for table in TABLES:
            unsealed = f"FROM {table} WHERE seq > {self._through[table]} AND seq <= {through}"
            count = self._engine.execute(f"SELECT count(*) {unsealed}").fetchall()[0][0]
            if count:
                self._boundary(
                    table, f"{count} rows are above its boundary {self._through[table]}, below that of events", count
                )
        for name, boundary in pins["events"].boundaries.items():
            found = pins["node_rollups"].boundaries.get(name, Boundary())
            if found.sealed < boundary.sealed:
                self._boundary(
                    "node_rollups", f"the boundary of {name} is {found.sealed}, and that of events {boundary.sealed}"
                )

    def _boundary(self, table: str, message: str, rows: int = 0) -> None:
        self._report.add(Difference("boundary", table, message, rows=rows))

    def _check_day(self, table: str, day: str, pins: Pin) -> None:
        """Compare one day. The sums of events are kept for the partial sums, which come last."""
        named = [file for file in self._with_times(pins[table]) if day_text(file) == day]
        copies = self._fetch(table, day, named)
        try:
            if table == "node_rollups":
                limits = pins["events"].boundaries
                self._check_sums(day, [one for one in copies if not _newer(one.file, limits)])
                return
            rows = f"({files.stored_rows(table, [one.path for one in copies])})"
            find_doubled(self._engine, self._report, table, day, rows, "in the files")
            self._check_hot(table, day, rows)
            if table == "events":
                sums = rollups.sums(f"(SELECT {restored(table)} FROM {rows})", "0")
                self._engine.execute(f"CREATE OR REPLACE TEMP TABLE sums_of_day AS {sums}")
        finally:
            for one in copies:
                one.path.unlink()

    def _check_sums(self, day: str, copies: Sequence[_Copy]) -> None:
        rows = files.stored_rows("node_rollups", [one.path for one in copies])
        sums = f"(SELECT {restored('node_rollups')} FROM ({rows}))"
        find_wrong_sums(self._engine, self._report, day, "sums_of_day", sums, "in the files")

    def _check_hot(self, table: str, day: str, rows: str) -> None:
        """Search for the rows of the database up to the boundary."""
        key = row_key(table)
        columns = ", ".join(f'"{column.name}"' for column in lake_columns(table))
        hot = f"{range_rows(table, NOTHING, self._through[table])} WHERE {within_day(day)}"
        compared, missing, changed, lost, wrong = self._engine.execute(
            f"""
            WITH hot AS (SELECT {key}, hash({columns}) AS digest FROM ({hot})),
                 sealed AS (SELECT {key}, hash({columns}) AS digest, true AS there FROM {rows}),
                 found AS (
                     SELECT {key}, count(there) > 0 AS there, bool_or(sealed.digest = hot.digest) AS same
                     FROM hot LEFT JOIN sealed USING ({key}) GROUP BY {key}, hot.digest)
            SELECT count(*), count(*) FILTER (NOT there), count(*) FILTER (there AND NOT same),
                   min(event_id::VARCHAR, {EXAMPLES}) FILTER (NOT there),
                   min(event_id::VARCHAR, {EXAMPLES}) FILTER (there AND NOT same)
            FROM found
            """
        ).fetchone()
        self._report.tables[table].compared += compared
        if missing:
            message = f"{missing} rows of the database are sealed and not in the files"
            self._report.add(Difference("missing_rows", table, message, day, missing, tuple(lost)))
        if changed:
            message = f"{changed} rows of the database are in the files with other values"
            self._report.add(Difference("changed_rows", table, message, day, changed, tuple(wrong)))

    def _fetch(self, table: str, day: str, named: Sequence[LakeFile]) -> list[_Copy]:
        """Copies of the files that can be read. Raises `UserError` when the storage does not answer."""
        copies = []
        for file in named:
            path = self._folder / file.name
            try:
                self._lake.fetch(table, file, path)
            except UserError:
                if self._lake.exists(table, file):
                    raise
                if file not in self._lake.pin(table).files:
                    raise UserError(f"{table}: the files of {day} were replaced meanwhile", "run it again") from None
                path.unlink(missing_ok=True)
                self._report.add(Difference("missing_file", table, f"{file.location} is missing", day, file.rows))
                continue
            if self._check_file(table, day, file, path):
                copies.append(_Copy(file, path))
            else:
                path.unlink()
        return copies

    def _check_file(self, table: str, day: str, file: LakeFile, path: Path) -> bool:
        """Compare a copy with what the table says of it; whether it can be read."""
        columns = ", ".join(f'"{column.name}"' for column in lake_columns(table))
        query = (
            f'SELECT count(*), epoch_us(min("{DAY}")), epoch_us(max("{DAY}")), min(cluster_id), max(cluster_id), '
            f"max(hash({columns})) FROM ({files.stored_rows(table, [path])})"
        )
        try:
            rows, first, last, lowest, highest, _ = self._engine.execute(query).fetchone()
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException) as error:
            message = f"{file.location} cannot be read: {str(error).splitlines()[0][:200]}"
            self._report.add(Difference("unreadable_file", table, message, day, file.rows))
            return False
        found = self._report.tables[table]
        found.files += 1
        found.sealed_rows += rows
        size = path.stat().st_size
        wrong = [f"{size} bytes instead of {file.size}"] if size != file.size else []
        wrong += [f"{rows} rows instead of {file.rows}"] if rows != file.rows else []
        if rows and not (file.first <= first and last <= file.last):
            wrong.append("times that the table does not say")
        if rows and not (file.may_have([lowest]) and file.may_have([highest])):
            wrong.append("clusters that the table does not say")
        if wrong:
            message = f"{file.location} has {', '.join(wrong)}"
            self._report.add(Difference("file", table, message, day, abs(rows - file.rows)))
        return True


def _newer(file: LakeFile, limits: Mapping[str, Boundary]) -> bool:
    """Whether a file is of a seal whose events are not committed yet."""
    found = plan.sealed_by(file.location)
    return found is not None and found[1] > limits.get(found[0], Boundary()).sealed
