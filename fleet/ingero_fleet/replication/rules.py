"""What results depend on besides the log, as a short text: replicas judge together only where it is equal."""

import platform
from dataclasses import asdict
from hashlib import blake2b
from typing import Final

import numpy as np
import orjson

from ingero_fleet.collectives.topology_file import read_topology
from ingero_fleet.processor_settings import ProcessorsConfig

RULES_VERSION: Final = 13
"""Raised by every change of the detector, the threshold rule or the collectives that changes results."""

OUTPUTS: Final = {"detector": {"snapshot", "snapshot_interval", "record", "record_bytes"}}
"""Settings of the processor that change no result."""


def rules_of(config: ProcessorsConfig, *, exports: tuple[bool, ...] = ()) -> str:
    """The version and a hash of settings, topology, NumPy and kind of processor. Prices judge nobody."""
    parts = [
        config.ingero.model_dump(mode="json", exclude=OUTPUTS),
        config.nccl.model_dump(mode="json", exclude={"topology_file"}),
        sorted((rank, asdict(port)) for rank, port in read_topology(config.nccl.topology_file).items()), exports,
        np.__version__, platform.machine(),
    ]  # fmt: skip
    return f"{RULES_VERSION}-{blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()}"
