"""The code blocks of the documents, as they stand in the Markdown files.

A line `<!-- ... -->` right before a block says how the block is tested (tests/project/test_pages.py):

    <!-- file: run.toml -->     the block is the content of this file
    <!-- exit 2 -->             the last command of the block ends with this exit code; 0 if nothing is said
    <!-- exit 0 or 3 -->        elsewhere it may end with the second code, and print something else
    <!-- name: numpy-page -->   another test takes the block by this name; it is run as usual
    <!-- needs arviz>=1 -->     the block is run where such a version of a package is installed
    <!-- not run: because -->   the block is not run, and why

A line `<!-- starts with: train.csv run.toml -->` anywhere in a page lists the files that its reader has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("examples/*.md")])

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    language  the word behind the fence
    mark      the comment before it, "" if there is none
    line      number of its first line in the page
    """

    language: str
    text: str
    mark: str
    line: int

    def marked(self, word: str) -> str:
        """The value in `<!-- word: value -->` or `<!-- word value -->`, "" if it has another word."""
        match = re.fullmatch(rf"{word}:? (.+)", self.mark)
        return match[1] if match else ""


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    result = []
    for match in _BLOCK.finditer(text):
        line = 1 + text.count("\n", 0, match.start("text"))
        result.append(Block(match["language"], match["text"], match["mark"] or "", line))
    return result


def block_named(page: Path, mark: str) -> str:
    """The text of the one block that has this mark."""
    (block,) = [block for block in blocks(page) if block.mark == mark]
    return block.text


def first_problem() -> str:
    """The configuration at the beginning of the README."""
    return block_named(ROOT / "README.md", "file: run.toml")


def starts_with(page: Path) -> list[str]:
    """The names of the files that a reader of the page has already."""
    match = re.search(r"^<!-- starts with: (.*) -->$", page.read_text(), re.M)
    return match[1].split() if match else []


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, and the lines of output that the page shows for each."""
    result: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            result.append((line[2:], []))
        elif result and result[-1][0].count('"') % 2:  # the text in quotes goes on
            result[-1] = (f"{result[-1][0]} {line.strip()}", [])
        elif line.strip():
            result[-1][1].append(line)
    return result
