"""Reads the file that says which NIC every GPU uses and how the switches are connected, and reads it again."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ingero_detect.network.links import RankPort
from ingero_detect.network.topology import TopologyError, ports_of
from ingero_kit.logs import get
from ingero_kit.settings import SettingsError
from ingero_kit.yaml_documents import load_yaml

log = get(__name__)

MAX_BYTES: Final = 64 << 20
"""A longer file is refused."""


def read_topology(file: Path | None) -> dict[str, RankPort]:
    """The NICs by GPU (`NODE:GPU`), empty without a file; raises `SettingsError` naming file and place."""
    if file is None:
        return {}
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise TopologyError(f"more than {MAX_BYTES >> 20} MiB")
        return ports_of(load_yaml(content))
    except OSError as error:
        raise SettingsError(f"processors.nccl.topology_file {file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"processors.nccl.topology_file {file}: {str(error)[:300]}") from None


class TopologyFile:
    """A topology file that is read again when it changes. `ports`: the NICs that are in use."""

    def __init__(self, file: Path, ports: Mapping[str, RankPort]) -> None:
        self._file, self._ports = file, ports
        self._seen: tuple[int, int, int] | None = (0, 0, 0)

    def changed(self) -> Mapping[str, RankPort] | None:
        """The NICs if they changed; `None` if they did not, or if the file cannot be used, which is logged."""
        seen = self._signature()
        if seen == self._seen:
            return None
        self._seen, before = seen, self._ports
        try:
            self._ports = read_topology(self._file)
        except SettingsError as error:
            log.warning("topology_refused", reason=str(error), hint="the one before stays in use")
        return self._ports if self._ports != before else None

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


async def follow_topology(file: TopologyFile, use: Callable[[Mapping[str, RankPort]], None], every: float) -> None:
    """Give a changed topology to `use`, until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            ports = await asyncio.to_thread(file.changed)
            if ports is not None:
                use(ports)
                log.info("topology_changed", nics=len(set(ports.values())))
        except Exception:
            log.exception("topology_failed", hint="the one before stays in use")
