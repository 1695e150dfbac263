"""Statuses of NCCL RAS from files with what `ncclras -f json` prints, or from the service itself."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ingero_analyze.diagnose import sources
from ingero_analyze.diagnose.sources import Problems
from ingero_detect.hangs.ras_status import RasStatus, RasUnreadable, parse_status
from ingero_kit.ras_client import RasUnavailable, fetch_status, is_address

MAX_STATUS: Final = min(256 << 20, sources.MAX_FILE_BYTES)
"""Largest status that is read from a service, bytes."""


def read_statuses(places: tuple[str, ...], problems: Problems, wait: float = 0.0) -> list[RasStatus]:
    """All statuses in files and from addresses, oldest first; what cannot be used is listed in `problems`.

    With `wait`, addresses are asked once more after so many seconds.
    """
    paths = tuple(place for place in places if Path(place).exists() or not is_address(place))
    addresses = tuple(place for place in places if place not in paths)
    found = []
    for file, data in _contents(paths, addresses, problems, wait):
        try:
            found.append(parse_status(data, partial(problems.add, file)))
        except RasUnreadable as error:
            problems.add(file, str(error))
    return sorted(found, key=lambda status: status.at)


def _contents(
    paths: tuple[str, ...], addresses: tuple[str, ...], problems: Problems, wait: float
) -> Iterator[tuple[str, bytes]]:
    """Every file and every answer of an address, each with its name."""
    for file, data in sources.contents_of(paths, (".json",), problems):
        yield str(file), data
    for pause in (0.0, wait) if wait else (0.0,):
        time.sleep(pause if addresses else 0.0)
        answered = []
        for address in addresses:
            try:
                yield address, asyncio.run(fetch_status(address, MAX_STATUS))
                answered.append(address)
            except RasUnavailable as error:
                problems.add(address, str(error))
        addresses = tuple(answered)
