"""Makes NumPy compute alike on processors of different generations. Imports NumPy only where it checks.

NumPy's logarithms and exponentials differ in the last bits between AVX-512, AVX2 and SSE. Replicas on different
machines would drift apart, so all of them use the oldest.
"""

import os
import platform
from importlib import import_module
from typing import Final

from ingero_kit.settings import SettingsError

VARIABLE: Final = "NPY_DISABLE_CPU_FEATURES"

PINNED: Final = ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR")
"""Instruction sets for which NumPy has functions of their own."""


def pin_processor() -> None:
    """Switch them off for this process and its children; has no effect once NumPy is imported."""
    if platform.machine() == "x86_64":
        os.environ[VARIABLE] = " ".join(dict.fromkeys([*os.environ.get(VARIABLE, "").split(), *PINNED]))


def check_pinned() -> None:
    """Raise `SettingsError` if NumPy uses one of them."""
    found = [name for name in PINNED if name in cpu_features()]
    if found:
        raise SettingsError(
            f"log.nats needs equal results on every processor, but NumPy uses {' '.join(found)}; start Fleet with "
            f'{VARIABLE}="{" ".join(PINNED)}"'
        )


def cpu_features() -> list[str]:
    """The processor's features that NumPy uses."""
    found: dict[str, bool] = import_module("numpy._core._multiarray_umath").__cpu_features__
    return sorted(name for name, used in found.items() if used)
