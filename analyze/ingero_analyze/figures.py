"""What every plot needs: matplotlib without a display, and a file that is written or refused in words."""

import os
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


def check_plot(file: Path) -> None:
    """Raise `PlotError` for a file that cannot become a plot, before the work is done for it."""
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:].lower() not in known:
        raise PlotError(f"{file}: the suffix is none of {', '.join(sorted(known))}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise PlotError(f"{file}: cannot be written")


def save(plt: Any, figure: Any, file: Path) -> None:
    """Write a figure as the file's suffix says, and close it; raises `PlotError`."""
    try:
        figure.savefig(file, dpi=110)
    except (ValueError, OSError) as error:
        raise PlotError(f"{file}: {error}") from None
    finally:
        plt.close(figure)
