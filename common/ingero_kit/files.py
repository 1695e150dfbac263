"""Replaces files atomically: other processes read the old or the new content, never a mixture."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A temporary file beside one, which it replaces when the block ends; nothing is left of it after an error."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(file)
    finally:
        with suppress(OSError):
            part.unlink()


def replace_file(file: Path, data: bytes) -> None:
    """Write a temporary file, sync it, then rename it. Keeps the mode of an existing file; raises `OSError`."""
    with replacing(file) as part:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            part.chmod(file.stat().st_mode & 0o777)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def not_utf8(error: UnicodeDecodeError) -> str:
    """Where a text is not UTF-8, and the cure; `error` is that of decoding all of it."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return (
        f"line {line} is not UTF-8 text (byte {error.start + 1} is 0x{error.object[error.start]:02X}): save it as "
        "UTF-8, for example with `iconv -f ENCODING -t UTF-8`, where ENCODING is WINDOWS-1252 or UTF-16"
    )


def write_ports_file(file: Path | None, ports: Mapping[str, int]) -> None:
    """Write the ports in use as JSON, for the process that started this one; does nothing without a file.

    Raises `OSError`, with the file in its text.
    """
    if file is not None:
        try:
            with replacing(file) as part:
                part.write_text(json.dumps(dict(ports)))
        except OSError as error:
            raise OSError(f"the ports file {file} cannot be written: {error.strerror}") from None
