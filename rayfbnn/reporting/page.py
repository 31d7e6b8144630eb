"""The page: a template for its sections, with a table of contents, a style sheet, pictures in its colours."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

from rayfbnn.errors import ConfigError
from rayfbnn.output.facts import Html
from rayfbnn.pictures import figures
from rayfbnn.pictures.figures import STYLE, Panel, in_force, new_figure, to_svg
from rayfbnn.version import __version__


@dataclass(frozen=True)
class Section:
    """One section of the page.

    key     its name in links
    title   its heading
    panels  label and HTML of each run; a section on all runs together has one panel, with the label ""
    """

    key: str
    title: str
    panels: tuple[tuple[str, str], ...]


def check_installed() -> None:
    """Raise ConfigError unless the packages that a page needs are installed."""
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise ConfigError(f"report: {name} is not installed; install rayfbnn[plots]")


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the whole page as HTML."""
    import jinja2

    folder = files("rayfbnn.reporting") / "templates"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        style=(folder / "style.css").read_text(encoding="utf-8"),
        version=__version__,
    )


_STYLE = STYLE | {"svg.fonttype": "none", "svg.hashsalt": "rayfbnn", "path.simplify_threshold": 0.5}
# The names are those of the style sheet, which has a light and a dark value for each.
_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--page)",
    "#e6e6e6": "var(--line)",
    **{
        getattr(figures, name.upper()).lower(): f"var(--{name})"
        for name in "blue orange green red purple sky grey violet rust ultramarine teal brown".split()
    },
}


def beside(panels: Iterable[Panel]) -> Html:
    """Return panels as pictures in rows, with as many in each row as fit the window."""
    pictures = "".join(map(_picture, panels))
    return Html(f'<div class="pictures">{pictures}</div>' if pictures else "")


def _picture(panel: Panel) -> str:
    """Return a figure of HTML; its size is that of the panel, 96 pixels an inch, if the window is wide."""
    with in_force(_STYLE):
        figure = new_figure(*panel.size)
        panel.draw(figure.subplots(), *panel.args)
        svg = to_svg(figure, _COLOURS)
    caption = panel.caption or panel.title
    label = f'<svg role="img" aria-label="{html.escape(panel.alt or caption)}" '
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    size = f"max-width: {96 * panel.size[0]:.0f}px"
    return f'<figure style="{size}">{svg.replace("<svg ", label, 1)}{below}</figure>'
