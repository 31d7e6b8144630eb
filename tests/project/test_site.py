"""The documents as a site: the page on Python is complete, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rayfbnn
from tests.project.offline import main
from tests.support.pages import ROOT

# mkdocs checks the links among the pages of docs/; these files are not among them.
OUTSIDE_THE_SITE = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "cluster/README.md")),
        *ROOT.glob("examples/*/README.md"),
    ]
)


def test_the_page_on_python_describes_every_public_name() -> None:
    described = re.findall(r"^::: rayfbnn\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(name for name in described if name in rayfbnn.__all__) == sorted(rayfbnn.__all__)


@pytest.mark.parametrize("page", OUTSIDE_THE_SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize(
    ("page", "outside"),
    [
        ('<a href="https://example.org">a link to follow</a><img src="picture.png">', 0),
        ('<script src="https://example.org/code.js"></script>', 1),
        ('<link rel="stylesheet" href="//example.org/style.css">', 1),
    ],
)
def test_a_page_that_loads_from_outside_is_found(page: str, outside: int, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(page)
    assert main([str(tmp_path)]) == outside


def test_a_site_without_pages_is_found(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
