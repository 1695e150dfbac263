"""Reads the file that says which NIC every GPU uses and how the switches are connected."""

from pathlib import Path
from typing import Final

from ingero_detect.links import RankPort
from ingero_detect.topology import TopologyError, ports_of
from ingero_kit.settings import SettingsError
from ingero_kit.yaml_documents import load_yaml

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
    except (OSError, ValueError) as error:
        raise SettingsError(f"processors.nccl.topology_file {file}: {str(error)[:300]}") from None
