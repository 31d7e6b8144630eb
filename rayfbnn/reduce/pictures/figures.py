"""The style of all pictures, figures outside pyplot's global state, and PNG files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError

Figure: TypeAlias = Any  # matplotlib's, or a part of one

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
}
_DPI = 160

P = ParamSpec("P")


def styled(draw: Callable[P, Path]) -> Callable[P, Path]:
    """Put STYLE in force while a function draws; ConfigError where matplotlib is not installed."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Path:
        try:
            import matplotlib
        except ImportError as exc:
            raise ConfigError("plots: matplotlib is not installed; install rayfbnn[plots]") from exc
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return in_style


def blank_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure as new_figure

    return new_figure(figsize=(width, height), layout="constrained", dpi=_DPI)


def figure_with_axes(
    n_rows: int, n_columns: int, *, width: float, height: float, **settings: Any
) -> tuple[Figure, Array]:
    """Return a figure and its axes (n_rows, n_columns)."""
    figure = blank_figure(width, height)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **settings)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure as a PNG file, and return its path."""
    path = Path(path)
    figure.savefig(path, format="png", dpi=_DPI)
    return path
