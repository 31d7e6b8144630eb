"""The page: its sections in a template with a table of contents and a style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

from rayfbnn.errors import ConfigError
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
