"""Packed files: gzip, bzip2, xz, Zstandard, LZ4, and ZIP archives of one file, told by how they begin."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

SUFFIXES: Final = ("gz", "bz2", "xz", "zst", "lz4", "zip")
"""Suffixes of packed files."""

ENDINGS: Final = rf"(\.({'|'.join(SUFFIXES)}))?$"
"""How names of packed files end, behind the ending of what is packed; a regular expression."""


class PackedError(ValueError):
    """A packed file cannot be read; the text says why."""


@contextmanager
def unpacked(file: Path) -> Iterator[tuple[BinaryIO, Callable[[], int] | None]]:
    """The bytes of a file, and what counts those read of a packed one; None for one that is not packed.

    Raises `PackedError` when it is damaged or cut off, also while it is read, and `OSError` as usual.
    """
    with file.open("rb") as stream:
        name, opener = next(
            (known for magic, known in _KINDS.items() if stream.peek(len(magic)).startswith(magic)), ("", None)
        )
        if opener is None:
            yield stream, None
            return
        try:
            with opener(stream) as content:
                yield content, stream.tell
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise PackedError(f"not {name}, or cut off: {error}") from None
        except OSError as error:
            if error.errno:
                raise
            raise PackedError(f"not {name}, or cut off: {error}") from None


def _by_arrow(stream: BinaryIO, codec: str) -> BinaryIO:
    try:
        import pyarrow as pa
    except ImportError:
        raise PackedError(f"unpacking {codec} needs pyarrow: pip install pyarrow") from None
    source: Any = pa.CompressedInputStream(stream, codec)
    return io.BufferedReader(source)


def _only_member(stream: BinaryIO) -> BinaryIO:
    """The only file in an archive. Raises `PackedError` for several, and for a workbook of a spreadsheet."""
    archive = zipfile.ZipFile(stream)
    names = [member.filename for member in archive.infolist() if not member.is_dir()]
    if "[Content_Types].xml" in names or "mimetype" in names:
        raise PackedError("a workbook of a spreadsheet: save the sheet as CSV")
    if names and all(name.endswith(".npy") for name in names):
        raise PackedError("arrays of NumPy: write them as CSV, with a time and the names of nodes")
    if len(names) != 1:
        raise PackedError(f"a ZIP archive of {len(names)} files: unpack it")
    return archive.open(names[0])  # type: ignore[return-value]


_KINDS: Final[dict[bytes, tuple[str, Callable[[BinaryIO], Any]]]] = {
    b"\x1f\x8b": ("gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ": ("xz", lzma.LZMAFile),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda stream: _by_arrow(stream, "zstd")),
    b"\x04\x22\x4d\x18": ("lz4", lambda stream: _by_arrow(stream, "lz4")),
    b"PK\x03\x04": ("ZIP", _only_member),
}
"""How packed files begin, what they are packed with, and what unpacks them."""
