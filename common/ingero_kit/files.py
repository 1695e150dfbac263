"""Files that others read while they are written: they see the old one or the new one, never half of either."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Write a temporary file, sync it, then rename it. Keeps the mode of an existing file; raises `OSError`."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            part.chmod(file.stat().st_mode & 0o777)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_ports_file(file: Path | None, ports: Mapping[str, int]) -> None:
    """Tell whoever started us which ports were taken, as JSON; nothing without a file."""
    if file is not None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dict(ports)))
        part.replace(file)
