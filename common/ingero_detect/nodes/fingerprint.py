"""What distinguishes two detectors with equal inputs: the hash of their states, and the processors that they ran on.

NumPy's logarithms and exponentials differ in the last bits between processors, so equal digests, which are those of
the inputs, do not prove equal results.
"""

import platform
from hashlib import blake2b
from importlib import import_module

import numpy as np

from ingero_detect.nodes.column_store import GROUP_COLUMNS, HISTOGRAMS, NODE_COLUMNS, ColumnStore


def state_hash(memory: ColumnStore) -> str:
    """The hash of everything that is remembered of nodes and groups."""
    found = blake2b(digest_size=16)
    found.update("\0".join(part for name in memory.names for part in name).encode())
    found.update("\0".join(part for key in memory.groups for part in key).encode())
    for column in (
        *map(memory.node, NODE_COLUMNS),
        *map(memory.group, (*GROUP_COLUMNS, *HISTOGRAMS)),
        memory.window(),
    ):
        found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()


def processor_text() -> str:
    """NumPy's version, the architecture, and the instruction sets for which NumPy uses functions of their own."""
    core = import_module("numpy._core._multiarray_umath")
    used = [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]
    return " ".join((f"numpy {np.__version__}", platform.machine(), *used))
