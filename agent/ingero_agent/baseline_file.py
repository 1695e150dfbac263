"""The baseline on disk: saved periodically and at exit, so that a crash does not require a new warm-up."""

import json
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ingero_agent.health.baseline import FAST, SLOW, Baseline
from ingero_agent.health.signals import Signals
from ingero_contract.signals import SIGNALS, HealthSignal
from ingero_kit.files import replace_file

SCHEMA_VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
_KEYS: Final = tuple("CPU" if row.signal is HealthSignal.CPU else row.signal.capitalize() for row in SIGNALS)


def save_baseline(file: Path, baseline: Baseline, now: float) -> None:
    """Write atomically: a temporary file, flushed to disk, then renamed, then the folder flushed."""
    tree = {
        "schema_version": SCHEMA_VERSION,
        "saved_at": datetime.fromtimestamp(now, UTC).isoformat(),
        "sample_count": baseline.samples,
        "fast_alpha": FAST,
        "floor_alpha": SLOW,
        "fast_ema": _write(baseline.fast),
        "hard_floor": _write(baseline.slow),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(tree).encode())


def load_baseline(file: Path, now: float, stale_seconds: float) -> tuple[Baseline | None, str]:
    """Read it back, or say why there is none: missing, stale, corrupt, unreadable or newer.

    A stale file is deleted, a corrupt one renamed, one from a newer version left alone. Where the folder cannot be
    changed they stay, and are not used either.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None, "missing"
    except OSError:
        return None, "unreadable"
    try:
        tree = json.loads(data)
        if tree["schema_version"] > SCHEMA_VERSION:
            return None, "newer"
        age = now - datetime.fromisoformat(tree["saved_at"]).timestamp()
        baseline = Baseline(int(tree["sample_count"]), _read(tree["fast_ema"]), _read(tree["hard_floor"]))
        if (tree["fast_alpha"], tree["floor_alpha"]) != (FAST, SLOW) or baseline.samples < 1:
            raise ValueError("other weights, or no samples")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        with suppress(OSError):
            file.replace(file.with_name(f"{file.name}.corrupt-{stamp}"))
        return None, "corrupt"
    if not 0 <= age <= stale_seconds:
        with suppress(OSError):
            file.unlink()
        return None, "stale"
    return baseline, "fresh"


def _write(signals: Signals) -> dict[str, float]:
    return dict(zip(_KEYS, signals, strict=True))


def _read(tree: Any) -> Signals:
    values = [float(tree[key]) for key in _KEYS]
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("not finite")
    return Signals(*values)
