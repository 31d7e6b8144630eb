"""Every command that a document or a message prints is one that the program accepts.

Commands of console blocks and of indented lines must be complete: their options exist, and no argument or
option that is required is absent. This is also true of a command in running text that names a file. Elsewhere
in running text, as in `rayfbnn resume --iterations`, the verb and the options must exist. Nothing is run
here; tests/project/test_pages.py runs the blocks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rayfbnn.cli import app
from tests.support.pages import ROOT, blocks, commands

DOCUMENTS = sorted(
    path
    for folder in (".", "docs", "examples", "cluster")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
SOURCES = sorted((ROOT / "rayfbnn").rglob("*.py"))
PROGRAM: Any = typer.main.get_command(
    app
)  # of Click's kind; newer versions of Typer have their own copy of it
VERBS = "|".join(PROGRAM.commands)
_FILE = re.compile(r"^[^-].*\.(toml|zarr|csv|parquet|npz|nc|html)\b|^[^-].*/")


def printed(document: Path) -> Iterator[str]:
    """The commands of a document that its reader may copy: those of console blocks, and indented ones."""
    for block in blocks(document):
        if block.language == "console":
            yield from (command for command, _ in commands(block))
    text = document.read_text().replace("\\\n", " ")
    yield from re.findall(r"^    +(?:\$ )?(rayfbnn .*)$", text, re.M)


def mentioned(text: str) -> Iterator[str]:
    """The commands in running text, between backquotes; text in braces stands for a word."""
    for match in re.finditer(rf"`(rayfbnn |(?={VERBS}) ?)([^`]+)`", text):
        command = re.sub(r"\s+", " ", match[2])
        if match[1] or re.match(rf"(?:{VERBS}) \S", command):
            yield f"rayfbnn {command}"


def problem(command: str, *, is_complete: bool) -> str:
    """Return why the program does not accept a command, or "".

    is_complete  whether it must have all that it needs; otherwise its words that exist are enough
    """
    before_pipe = re.split(r" [|>&]|\)$", command.replace("[", "").replace("]", ""))[0]
    words = shlex.split(before_pipe, comments=True)[1:]
    found = PROGRAM
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        if words[0] not in found.commands:
            return f"there is no command {words[0]}"
        found = found.commands[words.pop(0)]
    if is_complete or (words and _FILE.match(words[0])):
        try:
            found.make_context(command, words)
        except typer.Exit:
            return ""  # --help and --version
        except Exception as exc:
            return str(exc.format_message()) if hasattr(exc, "format_message") else repr(exc)
        return ""
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"there is no option {', '.join(unknown)}" if set(unknown) - {"--help", "--version"} else ""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_COMMANDS = [path for path in DOCUMENTS if any(c.startswith("rayfbnn ") for c in printed(path))]


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name_of)
def test_printed_commands_are_complete(document: Path) -> None:
    found = {
        command: problem(command, is_complete=True)
        for command in printed(document)
        if command.startswith("rayfbnn ")
    }
    assert not {command: why for command, why in found.items() if why}


def test_commands_in_running_text_exist() -> None:
    texts = {path: path.read_text() for path in DOCUMENTS}
    found = {
        (name_of(path), command): problem(command, is_complete=False)
        for path, text in texts.items()
        for command in mentioned(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    }
    assert len(found) > 100
    assert not {place: why for place, why in found.items() if why}


def test_commands_in_messages_and_docstrings_exist() -> None:
    found = {
        (name_of(path), command): problem(command, is_complete=False)
        for path in SOURCES
        for command in mentioned(re.sub(r"\{[^{}]*\}", "word", path.read_text()))
        if command.split()[1] in PROGRAM.commands
    }
    assert len(found) > 5
    assert not {place: why for place, why in found.items() if why}


@pytest.mark.parametrize(
    ("command", "is_complete", "why"),
    [
        ("rayfbnn prior run.toml prior.zarr", True, "Missing option '--draws'"),
        ("rayfbnn prior run.toml prior.zarr", False, "Missing option '--draws'"),
        ("rayfbnn prior", True, "Missing"),
        ("rayfbnn prior", False, ""),
        ("rayfbnn prior run.toml prior.zarr --draws 3", True, ""),
        ("rayfbnn predict run.zarr --date x.csv", True, "No such option"),
        ("rayfbnn resume --iteration", False, "no option --iteration"),
        ("rayfbnn sampel run.toml", False, "no command sampel"),
        ("rayfbnn study creat x", True, "no command creat"),
        ("rayfbnn diagnose run.zarr | head -1", True, ""),
    ],
)
def test_a_wrong_command_is_found(command: str, is_complete: bool, why: str) -> None:
    found = problem(command, is_complete=is_complete)
    assert why in found and bool(why) == bool(found)
