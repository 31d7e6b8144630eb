"""The help of the shell, taken from the docstrings of the verbs in Python.

The docstrings are read from the source files. Importing the verbs would also import NumPy and pandas, which
takes too long for help. The shell shows the paragraphs before the first section of a docstring. For a
parameter it shows the sentences before "From Python". "See `sample`." stands for the text of `sample`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_SECTION = re.compile(r"\n\n(\w+)\n-+\n")
_PARAMETER = re.compile(r"^(\w+(?:, \w+)*)$", re.MULTILINE)
_DEFINITION = re.compile(r"^ *(?:def|class) (\w+)", re.MULTILINE)
_SEE = re.compile(r"See `(\w+)`\.\s*")

VERBS = ("verbs/*.py", "demo.py", "selftest/selftest.py")
STUDY = ("study/study.py", "study/files.py", "study/rule.py")


@dataclass(frozen=True)
class Description:
    """A docstring as the shell shows it.

    text        paragraphs
    parameters  a paragraph for each parameter or attribute
    """

    text: str
    parameters: dict[str, str]


@cache
def described(name: str, files: tuple[str, ...] = VERBS) -> Description:
    """Return the description of the function, method or class of this name in one of the files."""
    text, *sections = _SECTION.split(docstring(name, files))
    explained = dict(zip(sections[::2], sections[1::2], strict=True))
    _, *parts = _PARAMETER.split(explained.get("Parameters") or explained.get("Attributes") or "")
    parameters = {
        parameter: _in_shell(parameter, words)
        for names, words in zip(parts[::2], parts[1::2], strict=True)
        for parameter in names.split(", ")
    }
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return Description(
        _with_options(text, parameters),
        {parameter: _with_options(words, parameters) for parameter, words in parameters.items()},
    )


def docstring(name: str, files: tuple[str, ...]) -> str:
    """Return the docstring of the function, method or class of this name in one of the files."""
    source, places = _definitions(files)
    return cleandoc(source[places[name] :].split('"""', 2)[1])


@cache
def _definitions(files: tuple[str, ...]) -> tuple[str, dict[str, int]]:
    """Return the text of the files (patterns below the package), and where it first defines each name."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for pattern in files for path in sorted(_PACKAGE.glob(pattern))
    )
    places: dict[str, int] = {}
    for definition in _DEFINITION.finditer(source):
        places.setdefault(definition[1], definition.end())
    return source, places


def _in_shell(parameter: str, words: str) -> str:
    """Return the text of a parameter without the part for Python, and with the text that it refers to."""
    words = " ".join(words.split()).partition(" From Python ")[0]
    if match := _SEE.match(words):
        elsewhere = described(match[1]).parameters[parameter]
        return " ".join(filter(None, (elsewhere, words[match.end() :])))
    return words


def _with_options(text: str, parameters: Iterable[str]) -> str:
    """Return a text with the options of the shell instead of the parameters in backticks."""
    for name in parameters:
        text = text.replace(f"`{name}`", f"--{name.replace('_', '-')}")
    return text
