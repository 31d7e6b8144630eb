"""The style and colours of all pictures, and the one place that arranges panels into files and pages."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file

# Okabe and Ito's palette without its yellow, which is hard to see on white; black is for text and reference
# lines.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#666666"
# Found by a search: far from those above, from each other and from black, with any colour vision.
VIOLET, RUST, ULTRAMARINE, TEAL, BROWN = "#330055", "#994433", "#0000CC", "#004444", "#551100"
CHAIN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, VIOLET, RUST, ULTRAMARINE, TEAL, BROWN)
_DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)))


def series_colour(number: int) -> str:
    """Return the colour of a chain, a label or another series; every twelfth has the same."""
    return CHAIN_COLOURS[number % len(CHAIN_COLOURS)]


def chain_style(chain: int) -> dict[str, Any]:
    """Return the colour and the dashes of a chain's lines, which are the same for every 36th chain."""
    return {"color": series_colour(chain), "ls": _DASHES[chain // len(CHAIN_COLOURS) % len(_DASHES)]}


Figure: TypeAlias = Any  # matplotlib's, or a part of one
Axes: TypeAlias = Any  # matplotlib's


@dataclass(frozen=True)
class Panel:
    """A panel of a picture, for a file or for a page.

    draw, args     a function that draws everything except the title, and its arguments after the axes
    title          above the panel in a file, and below it on a page unless there is a caption
    caption        below it on a page
    alt            a description for readers who cannot see it on a page; the caption by default
    size           width and height in inches
    """

    draw: Callable[..., None]
    args: tuple[Any, ...]
    title: str = ""
    caption: str = ""
    alt: str = ""
    size: tuple[float, float] = (3.6, 2.7)


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
    "text.parse_math": False,  # a dollar sign in the name of a column is a plain character
}
_DPI = 160


@contextmanager
def in_force(style: Any) -> Iterator[None]:
    """Apply a style; ConfigError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as exc:
        raise ConfigError("plots: matplotlib is not installed; install rayfbnn[plots]") from exc
    with matplotlib.rc_context(style):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure as MatplotlibFigure

    return MatplotlibFigure(figsize=(width, height), layout="constrained", dpi=_DPI)


def arrange(
    path: str | Path,
    *parts: Sequence[Panel],
    columns: int = 1,
    heading: str = "",
    has_common_legend: bool = False,
    sharex: bool | str = False,
    sharey: bool | str = False,
) -> Path:
    """Write panels to a PNG file, in rows of some columns, and return its path.

    parts              panels that are aligned with each other; further parts are below
    heading            above all panels
    has_common_legend  whether the legend of the first panel is below all panels
    sharex, sharey     which panels of a part share an axis, as in matplotlib; shared axes are labelled once

    Raises ConfigError if matplotlib is not installed.
    """
    with in_force(STYLE):
        sizes = [_sizes(panels, min(columns, len(panels))) for panels in parts]
        height = sum(sum(heights) for _, heights in sizes)
        figure = new_figure(max(sum(widths) for widths, _ in sizes), height)
        areas = [figure]
        if len(parts) > 1:
            areas = figure.subfigures(len(parts), 1, height_ratios=[sum(heights) for _, heights in sizes])
        for area, panels, (widths, heights) in zip(areas, parts, sizes, strict=True):
            axes = area.subplots(
                len(heights),
                len(widths),
                squeeze=False,
                sharex=sharex,
                sharey=sharey,
                width_ratios=widths,
                height_ratios=heights,
            )
            _draw_panels(axes, panels, are_columns_shared=bool(sharex))
        if heading:
            figure.suptitle(heading, fontsize=9)
        if has_common_legend:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return save(figure, path)


def _sizes(panels: Sequence[Panel], columns: int) -> tuple[list[float], list[float]]:
    """Return the widths of columns and the heights of rows."""
    widths = [max(one.size[0] for one in panels[column::columns]) for column in range(columns)]
    rows = range(0, len(panels), columns)
    return widths, [max(one.size[1] for one in panels[first : first + columns]) for first in rows]


def _draw_panels(axes: Array, panels: Sequence[Panel], *, are_columns_shared: bool) -> None:
    n_columns = axes.shape[1]
    for place, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        panel.draw(axis, *panel.args)
        if panel.title:
            axis.set_title(panel.title)
        is_lowest = place + n_columns >= len(panels)
        if are_columns_shared:
            axis.tick_params(labelbottom=is_lowest)
            axis.xaxis.label.set_visible(is_lowest)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure as a PNG file, and return its path."""
    picture = io.BytesIO()  # if Pillow wrote the file itself, it would hide why it fails
    figure.savefig(picture, format="png", dpi=_DPI)
    with whole_file(path) as file:
        file.write(picture.getbuffer())
    return Path(path)


def to_svg(figure: Figure, colours: Mapping[str, str]) -> str:
    """Return the figure as an SVG element for a page of HTML, which sets its font, text colour and size.

    Text stays text. Black and the colours of the style become the colours of the page.

    colours  the page's name for each hexadecimal colour
    """
    file = io.StringIO()
    with warnings.catch_warnings():
        # The page's font has the letters that matplotlib's lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", text, count=1)
    # Parts of different pictures on one page must not have the same names.
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:10]}-"
    return re.sub("<[^>]+>", lambda tag: _tag_for_pages(tag[0], colours, prefix), text)


def _tag_for_pages(tag: str, colours: Mapping[str, str], prefix: str) -> str:
    """Return a tag of an SVG with the page's font and colours, and a prefix before its name and its links.

    The text between tags, such as the names of columns, is left unchanged.
    """
    tag = re.sub(r"font: ([0-9.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub("#[0-9a-f]{6}", lambda colour: colours.get(colour[0], colour[0]), tag)
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", tag)
