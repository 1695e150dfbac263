"""The shared tables. The only module that uses PyIceberg."""

import contextlib
import itertools
import logging
import random
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, _parquet_files_to_data_files
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from ingero_echo.errors import UserError
from ingero_echo.lake.layout import DAY, lake_columns, sort_columns
from ingero_echo.lake.maintenance import StoredObject, next_lease, parse_lease
from ingero_echo.lake.plan import Boundary, backoff, boundaries, boundary_properties, landed
from ingero_echo.lake.view import LATEST, LakeFile, PinnedTable
from ingero_echo.settings import PASSWORD_IN_URL, TableConfig
from ingero_echo.tables import TABLES
from ingero_kit.logs import get
from ingero_kit.yaml_documents import DuplicateKeyError, load_yaml

log = get(__name__)

NAME: Final = "ingero"
"""Name of the catalog, which a catalog in SQL keeps with each table."""

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried when other writers commit at the same time."""

LEASED: Final = "events"
"""The table whose properties say which shard maintains all tables."""

SHORT_SECRET: Final = 8
"""Characters below which a secret is only hidden as a word of its own."""

_LEASE: Final = "ingero.maintenance"

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
            secret = load_yaml(config.credentials_file.read_text(encoding="utf-8"))
        except DuplicateKeyError as error:
            raise LakeError(f"{config.credentials_file}: {error}") from None
        except (OSError, ValueError):
            raise LakeError(f"{config.credentials_file}: cannot be read as YAML") from None
        if not isinstance(secret, dict):
            raise LakeError(f"{config.credentials_file}: properties were expected, NAME: VALUE")
        found |= {str(name): str(value) for name, value in secret.items()}
    return found


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """A text with `***` in place of every secret; of one with fewer than eight characters only where it is a word of
    its own, because short ones, such as names of regions and `true`, are parts of other words by chance."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may be a part of another
        short = len(secret) < SHORT_SECRET
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)" if short else re.escape(secret), "***", text)
    return text


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

    def boundaries(self, table: str) -> dict[str, Boundary]:
        """What a table says of all shards."""
        with self._errors():
            return boundaries(self._load(table).properties)

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
                schema = loaded.schema()
                numbers = (schema.find_field(DAY).field_id, schema.find_field("cluster_id").field_id)
                files = tuple(_file(task.file, *numbers) for task in loaded.scan().plan_files())
            return PinnedTable(files, boundaries(loaded.properties), version)

    def fetch(self, table: str, file: LakeFile, target: Path) -> None:
        """Copy a data file of a pinned table to this machine; from any thread."""
        with self._errors(), self._ios[table].new_input(file.location).open() as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)

    def exists(self, table: str, file: LakeFile) -> bool:
        """Whether a data file of a pinned table is in the storage."""
        with self._errors():
            return self._ios[table].new_input(file.location).exists()

    def storage_time(self) -> float:
        """The time of the object storage, seconds, from an object that is written for this."""
        with self._errors():
            files, path = _file_system(self._load(LEASED))
            probe = f"{path}/metadata/maintenance-time"
            with files.open_output_stream(probe) as target:
                target.write(b"-")
            return _modified(files.get_file_info(probe))

    def claim(self, now: float, every: float) -> bool:
        """Take or renew the lease on maintenance; whether this shard has it."""
        with self._errors():
            loaded = self._load(LEASED)
            wanted = next_lease(parse_lease(loaded.properties.get(_LEASE, "")), self._config.shard, now, every)
            if wanted is None:
                return False
            try:
                with loaded.transaction() as change:
                    change.set_properties({_LEASE: f"{wanted.shard} {wanted.until:.0f}"})
            except CommitFailedException:  # the next run tries again
                return False
            return True

    def replace(self, table: str, old: Sequence[LakeFile], location: str | None = None) -> bool:
        """Take files out of a table, and put one with the same rows in, in one commit; whether all were there."""
        with self._errors():
            for attempt in range(COMMIT_ATTEMPTS):
                loaded = self._load(table)
                there = {task.file.file_path: task.file for task in loaded.scan().plan_files()}
                if any(file.location not in there for file in old):
                    return False
                try:
                    with loaded.transaction() as change, change.update_snapshot().overwrite() as files:
                        for file in old:
                            files.delete_data_file(there[file.location])
                        if location is not None:
                            for made in _parquet_files_to_data_files(loaded.metadata, [location], loaded.io):
                                files.append_data_file(made)
                    return True
                # PyIceberg evaluates manifests in threads that share one evaluator, so it misses files now and then.
                except (CommitFailedException, ValidationException):
                    time.sleep(backoff(attempt, random.random()))
            raise LakeError(f"{table}: {COMMIT_ATTEMPTS} commits were refused because others committed")

    def expire(self, table: str, before: float) -> int:
        """Forget the snapshots that were replaced before a time; returns how many."""
        with self._errors():
            loaded = self._load(table)
            snapshots = sorted(loaded.snapshots(), key=lambda one: one.sequence_number or 0)
            old = [
                one.snapshot_id
                for one, after in itertools.pairwise(snapshots)
                if after.timestamp_ms < before * 1000 and one.snapshot_id != loaded.metadata.current_snapshot_id
            ]
            kept = {ref.snapshot_id for ref in loaded.metadata.refs.values()}
            old = [one for one in old if one not in kept]
            try:
                if old:
                    loaded.maintenance.expire_snapshots().by_ids(old).commit()
            except CommitFailedException:  # the next run tries again
                return 0
            return len(old)

    def stored(self, table: str) -> list[StoredObject]:
        """All objects below the location of a table."""
        with self._errors():
            files, path = _file_system(self._load(table))
            found = files.get_file_info(FileSelector(path, recursive=True))
            return [StoredObject(one.path, _modified(one)) for one in found if one.type == FileType.File]

    def named(self, table: str) -> set[str]:
        """The paths of all objects that the table and its snapshots name."""
        with self._errors():
            loaded = self._load(table)
            metadata = loaded.metadata
            locations = {loaded.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
            locations |= {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}
            manifests: dict[str, ManifestFile] = {}
            for snapshot in metadata.snapshots:
                locations.add(snapshot.manifest_list)
                manifests |= {one.manifest_path: one for one in snapshot.manifests(loaded.io)}
            for path, manifest in manifests.items():
                locations.add(path)
                locations |= {
                    entry.data_file.file_path
                    for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=False)
                }
            return {PyArrowFileIO.parse_location(location)[2] for location in locations}

    def remove(self, table: str, paths: Sequence[str]) -> None:
        """Delete objects; those that are gone do not matter."""
        with self._errors():
            files, _ = _file_system(self._load(table))
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    files.delete_file(path)

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
            text = without_secrets(f"{type(error).__name__}: {error}", self._secrets).partition("\n")[0][:500]
            raise LakeError(f"the shared tables cannot be used: {text}") from None


def _file(file: DataFile, day: int, cluster: int) -> LakeFile:
    """What a manifest says of a data file; `day` and `cluster` are the numbers of its columns."""

    def bound(bounds: dict[int, bytes] | None, number: int, kind: PrimitiveType, otherwise: Any) -> Any:
        raw = (bounds or {}).get(number)
        return otherwise if raw is None else from_bytes(kind, raw)

    low, high = file.lower_bounds, file.upper_bounds
    return LakeFile(
        file.file_path, file.file_size_in_bytes, file.record_count,
        bound(low, day, TimestampType(), 0), bound(high, day, TimestampType(), LATEST),
        bound(low, cluster, StringType(), ""), bound(high, cluster, StringType(), None),
    )  # fmt: skip


def _file_system(table: Table) -> tuple[FileSystem, str]:
    """The file system of a table, and its location there. Raises `LakeError`."""
    if not isinstance(table.io, PyArrowFileIO):
        raise LakeError("maintenance needs the file system of PyArrow: remove py-io-impl from table.catalog")
    scheme, place, path = table.io.parse_location(table.location())
    return table.io.fs_by_scheme(scheme, place), path


def _modified(info: FileInfo) -> float:
    if info.mtime is None:
        raise LakeError(f"the storage does not say when {info.path} was written")
    return float(info.mtime.timestamp())


logging.getLogger("pyiceberg").setLevel(logging.ERROR)
