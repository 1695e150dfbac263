"""Packed files are read as what they hold; damaged ones, workbooks and archives of several files are named."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from ingero_analyze.diagnose.sources import Problems, contents_of
from ingero_analyze.packed import PackedError, unpacked
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import read_columns, read_rows

TEXT = b"".join([b"node,rate\n", *(b"n%d,%d\n" % (n % 8, 1000 + n) for n in range(50_000))])


def archive(*names: str) -> Callable[[bytes], bytes]:
    """What packs content as every one of some files of a ZIP archive."""

    def packed(content: bytes) -> bytes:
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as members:
            members.mkdir("export")
            for name in names:
                members.writestr(name, content)
        return target.getvalue()

    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zip": archive("export/history.csv"),
}  # fmt: skip

ALL = pytest.mark.parametrize(("ending", "pack"), PACKERS.items(), ids=PACKERS)


@ALL
def test_tables_are_read(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    file = tmp_path / f"history.csv.{ending}"
    file.write_bytes(pack(TEXT))

    batches = list(read_columns(str(file), lambda names: names))
    assert sum(batch.rows for batch in batches) == 50_000
    assert batches[-1].numbers("rate")[-1] == 50_999
    assert 0 < batches[-1].consumed <= file.stat().st_size

    columns, rows = read_rows(str(file), lambda size: None)
    assert columns == ["node", "rate"]
    assert sum(1 for _ in rows) == 50_000


@ALL
def test_damaged_ones_are_named(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "history.csv"
    packed = pack(TEXT)
    file.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TableError, match=r"history\.csv: not \w+, or cut off"):
        list(read_columns(str(file), lambda names: names))

    middle = len(packed) // 2
    file.write_bytes(
        packed[:middle] + bytes(255 - byte for byte in packed[middle : middle + 64]) + packed[middle + 64 :]
    )
    with pytest.raises(PackedError), unpacked(file) as (stream, _):
        stream.read()


@ALL
def test_recordings_in_folders_are_found(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / f"rank0.json.{ending}").write_bytes(pack(json.dumps([1]).encode()))
    (tmp_path / f"notes.md.{ending}").write_bytes(pack(b"other"))
    problems = Problems()
    assert [content for _, content in contents_of([str(tmp_path)], (".json",), problems)] == [b"[1]"]
    assert not problems.count


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["[Content_Types].xml", "xl/workbook.xml"], "a workbook of a spreadsheet: save the sheet as CSV"),
        (["mimetype", "content.xml"], "a workbook of a spreadsheet: save the sheet as CSV"),
        (["a.csv", "b.csv"], "a ZIP archive of 2 files: unpack it"),
        ([], "a ZIP archive of 0 files: unpack it"),
    ],
)
def test_archives_that_are_no_single_file_are_refused(tmp_path: Path, names: list[str], said: str) -> None:
    (tmp_path / "history.csv").write_bytes(archive(*names)(TEXT))
    with pytest.raises(PackedError) as caught, unpacked(tmp_path / "history.csv"):
        pass
    assert str(caught.value) == said


def test_the_largest_unpacked_size_holds_for_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_analyze.diagnose.sources.MAX_FILE_BYTES", 1 << 20)
    for ending, pack in PACKERS.items():
        (tmp_path / f"rank0.json.{ending}").write_bytes(pack(bytes(8 << 20)))
    problems = Problems()
    assert not list(contents_of([str(tmp_path)], (), problems))
    assert problems.count == len(PACKERS)
    assert all("larger than 1048576 bytes" in text for text in problems.shown)
