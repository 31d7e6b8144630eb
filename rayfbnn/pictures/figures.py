"""The style and colours of all pictures, figures without pyplot's global state, PNG files, and SVG."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

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
    return {
        "color": series_colour(chain),
        "ls": _DASHES[chain // len(CHAIN_COLOURS) % len(_DASHES)],
    }


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
    "text.parse_math": False,  # a dollar sign in the name of a column is a plain character
}
_DPI = 160

P = ParamSpec("P")


def styled(draw: Callable[P, Path]) -> Callable[P, Path]:
    """Apply STYLE while a function draws; ConfigError if matplotlib is not installed."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Path:
        with in_force(STYLE):
            return draw(*args, **kwargs)

    return in_style


@contextmanager
def in_force(style: Any) -> Iterator[None]:
    """Apply a style; ConfigError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as exc:
        raise ConfigError("plots: matplotlib is not installed; install rayfbnn[plots]") from exc
    with matplotlib.rc_context(style):
        yield


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
