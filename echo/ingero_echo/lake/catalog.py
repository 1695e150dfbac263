"""The shared tables. The only module that uses PyIceberg."""

import contextlib
import logging
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    UUIDType,
)

from ingero_echo.errors import UserError
from ingero_echo.lake.layout import DAY, lake_columns, sort_columns
from ingero_echo.lake.plan import Boundary, backoff, boundaries, boundary_properties, landed
from ingero_echo.lake.view import LATEST, LakeFile, PinnedTable
from ingero_echo.settings import PASSWORD_IN_URL, TableConfig
from ingero_echo.tables import TABLES
from ingero_kit.logs import get

log = get(__name__)

NAME: Final = "ingero"
"""Name of the catalog, which a catalog in SQL keeps with each table."""

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried when other writers commit at the same time."""

_TYPES: Final[dict[str, IcebergType]] = {
    "uuid": UUIDType(), "string": StringType(), "double": DoubleType(), "int": IntegerType(), "long": LongType(),
    "timestamp": TimestampType(),
}  # fmt: skip

_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "commit.retry.num-retries": "0",  # the library's retries do not read the boundary again
}


class LakeError(UserError):
    """The catalog or the object storage cannot be used now; the text has no secrets."""


def catalog_properties(config: TableConfig) -> dict[str, str]:
    """The properties of the catalog with those of the file of credentials, which win. Raises `LakeError`."""
    found = {**config.catalog, "warehouse": config.warehouse}
    if config.credentials_file:
        try:
            secret = yaml.safe_load(config.credentials_file.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            raise LakeError(f"{config.credentials_file}: cannot be read as YAML") from None
        if not isinstance(secret, dict):
            raise LakeError(f"{config.credentials_file}: properties were expected, NAME: VALUE")
        found |= {str(name): str(value) for name, value in secret.items()}
    return found


class LakeCatalog:
    """The tables of one namespace. For one thread."""

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        properties = catalog_properties(config)
        self._secrets = {value for name, value in properties.items() if config.catalog.get(name) != value}
        self._secrets |= {value.partition("@")[0] for value in self._secrets if PASSWORD_IN_URL.match(value)}
        self._secrets.discard(config.warehouse)
        self._ios: dict[str, FileIO] = {}
        """The file systems of pinned tables."""
        with self._errors():
            self._catalog: Catalog = load_catalog(NAME, **properties)

    def create(self) -> None:
        """Create what is missing: the namespace, tables, columns of newer versions."""
        with self._errors():
            self._catalog.create_namespace_if_not_exists(self._config.namespace)
            for table in TABLES:
                self._evolve(self._create(table), table)

    def boundary(self, table: str, shard: str) -> Boundary:
        """What a table says of a shard."""
        with self._errors():
            return boundaries(self._load(table).properties).get(shard, Boundary())

    def field_ids(self, table: str) -> dict[str, int]:
        """The numbers of the columns, which files must name."""
        with self._errors():
            return {field.name: field.field_id for field in self._load(table).schema().fields}

    def put(self, table: str, file: Path, name: str) -> str:
        """Store a file below a table's location; returns where it is."""
        with self._errors():
            loaded = self._load(table)
            location = f"{loaded.location()}/{name}"
            with file.open("rb") as source, loaded.io.new_output(location).create(overwrite=True) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            return location

    def commit(self, table: str, locations: Sequence[str], shard: str, expected: int, wanted: Boundary) -> None:
        """Add files and set the boundary of a shard in one commit; nothing when that has happened before.

        Raises `ShardTaken`, or `LakeError` when it is not known whether it was committed: then ask again.
        """
        with self._errors():
            for attempt in range(COMMIT_ATTEMPTS):
                loaded = self._load(table)
                if landed(shard, boundaries(loaded.properties).get(shard, Boundary()), expected, wanted):
                    return
                try:
                    with loaded.transaction() as change:
                        facts = {"ingero.shard": shard, "ingero.sealed": str(wanted.sealed)}
                        change.add_files([*locations], snapshot_properties=facts, check_duplicate_files=False)
                        change.set_properties(boundary_properties(shard, wanted))
                    return
                except (CommitFailedException, CommitStateUnknownException):
                    time.sleep(backoff(attempt, random.random()))
            raise LakeError(
                f"{table}: {COMMIT_ATTEMPTS} commits were refused because others committed at the same time"
            )

    def pin(self, table: str, before: PinnedTable | None = None) -> PinnedTable:
        """The present version of a table, empty where none was created; `before` is what was pinned last."""
        with self._errors():
            try:
                loaded = self._load(table)
            except NoSuchTableError:
                return PinnedTable((), {})
            self._ios[table] = loaded.io
            snapshot = loaded.current_snapshot()
            version = snapshot.snapshot_id if snapshot else 0
            if before is not None and before.version == version:
                files = before.files
            else:
                number = loaded.schema().find_field(DAY).field_id
                files = tuple(_file(task.file, number) for task in loaded.scan().plan_files())
            return PinnedTable(files, boundaries(loaded.properties), version)

    def fetch(self, table: str, file: LakeFile, target: Path) -> None:
        """Copy a data file of a pinned table to this machine; from any thread."""
        with self._errors(), self._ios[table].new_input(file.location).open() as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)

    def _load(self, table: str) -> Table:
        return self._catalog.load_table((self._config.namespace, table))

    def _create(self, table: str) -> Table:
        try:
            return self._load(table)
        except NoSuchTableError:
            pass
        columns = lake_columns(table)
        schema = Schema(*(NestedField(n, c.name, _TYPES[c.kind], required=False) for n, c in enumerate(columns, 1)))
        numbers = {column.name: number for number, column in enumerate(columns, 1)}
        days = PartitionSpec(PartitionField(numbers[DAY], 1000, DayTransform(), "day"))
        order = SortOrder(*(SortField(numbers[name], IdentityTransform()) for name in sort_columns(table)))
        properties = {**_PROPERTIES, "schema.name-mapping.default": schema.name_mapping.model_dump_json()}
        return self._catalog.create_table_if_not_exists(
            (self._config.namespace, table), schema, partition_spec=days, sort_order=order, properties=properties
        )

    def _evolve(self, loaded: Table, table: str) -> None:
        there = {field.name for field in loaded.schema().fields}
        missing = [column for column in lake_columns(table) if column.name not in there]
        if missing:
            with loaded.update_schema() as change:
                for column in missing:
                    change.add_column(column.name, _TYPES[column.kind])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the catalog and of the storage as `LakeError`, in one line and without secrets."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:500]
            for secret in self._secrets:
                text = text.replace(secret, "***")
            raise LakeError(f"the shared tables cannot be used: {text}") from None


def _file(file: DataFile, day: int) -> LakeFile:
    """What a manifest says of a data file; `day` is the number of its column of times."""

    def bound(bounds: dict[int, bytes] | None, otherwise: int) -> int:
        raw = (bounds or {}).get(day)
        return otherwise if raw is None else int(from_bytes(TimestampType(), raw))

    first, last = bound(file.lower_bounds, 0), bound(file.upper_bounds, LATEST)
    return LakeFile(file.file_path, file.file_size_in_bytes, file.record_count, first, last)


logging.getLogger("pyiceberg").setLevel(logging.ERROR)
