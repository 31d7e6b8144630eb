"""Writes names.txt of the stand-in for CuPy from CuPy itself, which needs no device for that.

`python cupy_names.py > 13.txt` where each version is installed, then `python cupy_names.py 13.txt 14.txt`.
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
    """One line for each name, in the format that rules.py reads."""
    for home in (*HOMES, *OF_CUDA):
        for name in dir(_named(home)):
            if not name.startswith("_"):
                value = getattr(_named(home), name, None)
                if not inspect.ismodule(value):
                    yield _line(f"{home}.{name}", value)
    for name in SINGLE:
        yield _line(name, _named(name))


def _named(path: str) -> Any:
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            value = getattr(value, part)
        return value
    raise ImportError(path)


def _line(name: str, value: Any) -> str:
    if type(value).__name__ == "ufunc":
        return f"{name} ufunc {value.nin} {value.nout} {' '.join(value.types)}"
    if isinstance(value, type):
        return f"{name} class"
    if callable(value):
        return " ".join([f"{name} function", *_parameters(value)])
    return f"{name} attribute"


def _parameters(function: Any) -> Iterator[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # Compiled code has its signature in the first line of its docstring.
        text = re.search(r"\((.*)\)", (function.__doc__ or "").strip().split("\n")[0])
        for part in re.split(r", (?![^(\[]*[)\]])", text.group(1)) if text else []:
            name, has_default, _ = part.partition("=")
            if name and name not in ("self", "/"):
                yield name.split(":")[0].split()[-1] + ("=" if has_default else "")
        return
    is_by_keyword = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_by_keyword:
            is_by_keyword = True
            yield "*"
        is_by_keyword |= parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.name != "self":
            yield stars + parameter.name + ("" if stars or parameter.default is parameter.empty else "=")


def shared(first: list[str], second: list[str]) -> Iterator[str]:
    """Names that both versions have, with the parameters of both and the dtypes of the first."""
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
        names = shared(*(Path(path).read_text().splitlines() for path in sys.argv[1:]))
    else:
        names = lines()
    print("\n".join(sorted(names)))
