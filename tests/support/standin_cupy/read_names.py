"""names.txt from CuPy itself, which needs no device for it.

`python read_names.py > 13.txt` where each version is installed, then `python read_names.py 13.txt 14.txt`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOMES = ("cupy", "cupy.linalg", "cupyx.scipy.special", "cupy.ndarray", "cupy.RawModule", "cupy.RawKernel")
OF_CUDA = (
    "cupy.cuda",
    *(f"cupy.cuda.{name}" for name in ("Stream", "Event", "Device", "MemoryPool", "Graph")),
)
SINGLE = ("cupy.cuda.runtime.getDevice", "cupyx.empty_pinned")


def lines() -> Iterator[str]:
    """A line for each name, as rules.py reads it."""
    for home in (*HOMES, *OF_CUDA):
        for name in dir(_named(home)):
            if not name.startswith("_"):
                found = getattr(_named(home), name, None)
                if not inspect.ismodule(found):
                    yield _line(f"{home}.{name}", found)
    for name in SINGLE:
        yield _line(name, _named(name))


def _named(path: str) -> Any:
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)


def _line(name: str, found: Any) -> str:
    if type(found).__name__ == "ufunc":
        return f"{name} ufunc {found.nin} {found.nout} {' '.join(found.types)}"
    if isinstance(found, type):
        return f"{name} class"
    if callable(found):
        return " ".join([f"{name} function", *_parameters(found)])
    return f"{name} attribute"


def _parameters(function: Any) -> Iterator[str]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except ValueError:  # of compiled code: the first line of the docstring
        text = re.search(r"\((.*)\)", (function.__doc__ or "").strip().split("\n")[0])
        for part in re.split(r", (?![^(\[]*[)\]])", text.group(1)) if text else []:
            name, has_default, _ = part.partition("=")
            if name and name not in ("self", "/"):
                yield name.split(":")[0].split()[-1] + ("=" if has_default else "")
        return
    is_by_keyword = False
    for each in found:
        if each.kind is each.KEYWORD_ONLY and not is_by_keyword:
            is_by_keyword = True
            yield "*"
        is_by_keyword |= each.kind is each.VAR_POSITIONAL
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.name != "self":
            yield stars + each.name + ("" if stars or each.default is each.empty else "=")


def shared(first: list[str], second: list[str]) -> Iterator[str]:
    """Names of both, with the parameters that both have and the first's dtypes."""
    others = {line.split()[0]: line.split() for line in second}
    for words in map(str.split, first):
        other = others.get(words[0])
        if other is None or other[1] != words[1]:
            continue
        takes_anything = words[2:] == ["*args", "**kwargs"]
        if words[1] == "function":
            words = other if takes_anything else [word for word in words if word in other]
        yield " ".join(words)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        made = shared(*(Path(path).read_text().splitlines() for path in sys.argv[1:]))
    else:
        made = lines()
    print("\n".join(sorted(made)))
