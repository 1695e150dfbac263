"""What every plot needs: matplotlib without a display, and a file that is written or refused in words."""

from pathlib import Path
from typing import Any


class PlotError(RuntimeError):
    """No plot could be made; the text says why."""


def pyplot() -> Any:
    """Matplotlib's `pyplot`, which draws into files; raises `PlotError` where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise PlotError("--plot needs matplotlib: pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # Names of nodes may hold dollar signs.
    mpl.rcParams["text.parse_math"] = False

    return plt


def save(plt: Any, figure: Any, file: Path) -> None:
    """Write a figure as the file's suffix says, and close it; raises `PlotError` for an unknown one."""
    try:
        figure.savefig(file, dpi=110)
    except ValueError as error:
        raise PlotError(f"{file}: {error}") from None
    finally:
        plt.close(figure)
