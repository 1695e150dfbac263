"""What results depend on besides the log, as a short text: replicas judge together only where it is equal."""

import platform
from hashlib import blake2b
from typing import Final

import numpy as np
import orjson

from ingero_fleet.processor_settings import ProcessorsConfig

RULES_VERSION: Final = 2
"""Raised by every change of the detector, the threshold rule or the collectives that changes results."""

OUTPUTS: Final = {"detector": {"snapshot", "snapshot_interval", "record", "record_bytes"}}
"""Settings of the processor that change no result."""


def rules_of(config: ProcessorsConfig, *, exports: tuple[bool, ...] = ()) -> str:
    """The version and a hash of settings, NumPy and kind of processor. Prices are left out: cost judges nobody."""
    parts = [
        config.ingero.model_dump(mode="json", exclude=OUTPUTS), config.nccl.model_dump(mode="json"), exports,
        np.__version__, platform.machine(),
    ]  # fmt: skip
    return f"{RULES_VERSION}-{blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()}"
