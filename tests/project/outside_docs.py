"""Adds to the site what its pages link to outside docs/; a hook of MkDocs, which mkdocs.yml names.

Files outside docs/ keep their path in the repository, next to the pages of docs/, and links change to fit.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADDED = ("SECURITY.md", "cluster")  # files and folders

_LINK = re.compile(r"\]\(([^)#\s:]+)")


def added_files(root: Path) -> Iterator[Path]:
    """Yield the files outside docs/ that the site has."""
    for name in ADDED:
        path = root / name
        yield from sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def on_files(files: Any, config: Any) -> Any:
    """Add the files to those of the site."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for path in added_files(root):
        files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the links of a page that enter or leave docs/."""
    is_added = page.file.generated_by is not None
    source = page.file.src_uri if is_added else f"docs/{page.file.src_uri}"
    return _LINK.sub(lambda link: f"]({link_in_site(link[1], source)}", markdown)


def link_in_site(link: str, source: str) -> str:
    """Return the link of the site for a relative link of the file `source` in the repository."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if source.startswith("docs/") and target.startswith("docs/"):
        return link
    here = posixpath.dirname(source.removeprefix("docs/"))
    return posixpath.relpath(target.removeprefix("docs/"), here or ".")
