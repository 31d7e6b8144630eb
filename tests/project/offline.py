"""Checks that a site loads nothing from other addresses: `python -m tests.project.offline site`.

Links that a reader follows (`<a href>`) may lead anywhere.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

ATTRIBUTES = ("src", "srcset", "href", "data", "poster")


class Loaded(HTMLParser):
    """Collects the addresses outside a site that a browser fetches in order to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            return
        addresses = [
            value or "" for name, value in attrs if name in ("src", "srcset", "href", "data", "poster")
        ]
        self.outside += [address for address in addresses if address.startswith(("http:", "https:", "//"))]


def outside_addresses(site: Path) -> list[str]:
    """Return a line for each address outside the site that a page or a style sheet loads."""
    lines = []
    for page in sorted(site.rglob("*.html")):
        parser = Loaded()
        parser.feed(page.read_text())
        lines += [f"{page.relative_to(site)}: {address}" for address in parser.outside]
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text()
        lines += [
            f"{sheet.relative_to(site)}: {word}" for word in ("@import", "url(http", "url(//") if word in text
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Print what the pages of the site load from outside; 1 if there is anything, or no page."""
    site = Path(arguments[0])
    pages = list(site.rglob("*.html"))
    lines = outside_addresses(site)
    print("\n".join(lines or [f"{site}: {len(pages)} pages, which load nothing from outside"]))
    return int(bool(lines) or not pages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
