"""The documents as a site: the page on Python is complete, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rayfbnn
from tests.project.offline import main
from tests.project.outside_docs import added_files, link_in_site
from tests.support.pages import ROOT

DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "cluster/README.md")),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)


def test_the_page_on_python_describes_every_public_name() -> None:
    described = re.findall(r"^::: rayfbnn\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(name for name in described if name in rayfbnn.__all__) == sorted(rayfbnn.__all__)


def linked(page: Path) -> list[Path]:
    """The files and folders that a document links to."""
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    return [(page.parent / link).resolve() for link in links if "://" not in link]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert [str(target) for target in linked(page) if not target.exists()] == []


def test_the_site_has_what_its_pages_link_to() -> None:
    added = set(added_files(ROOT))
    pages = [*ROOT.glob("docs/**/*.md"), *(path for path in added if path.suffix == ".md")]
    outside = {
        target for page in pages for target in linked(page) if not target.is_relative_to(ROOT / "docs")
    }
    assert outside <= added


@pytest.mark.parametrize(
    ("link", "source", "in_site"),
    [
        ("../cluster/README.md", "docs/running.md", "cluster/README.md"),
        ("../../SECURITY.md", "docs/decisions/0001.md", "../SECURITY.md"),
        ("../priors.md", "docs/examples/counts.md", "../priors.md"),
        ("../docs/store.md", "cluster/README.md", "../store.md"),
        ("slurm/one.sbatch", "cluster/README.md", "slurm/one.sbatch"),
        ("cluster/README.md", "SECURITY.md", "cluster/README.md"),
    ],
)
def test_a_link_fits_the_places_of_files_in_the_site(link: str, source: str, in_site: str) -> None:
    assert link_in_site(link, source) == in_site


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
