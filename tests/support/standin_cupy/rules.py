"""The names, parameters and dtypes of CuPy, read from names.txt.

names.txt holds what CuPy 13.4.1 and 14.2.0 have in common (benchmarks/device/cupy_names.py writes it). Each
name has a line, with the parameters of a function (`=` after those with a default, `*` before those by name
alone), or the number of arguments and results of a ufunc and the dtypes of its loops in 13.4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

OF_A_UFUNC = ("out", "dtype", "casting")
# Loops of `where` in 13.4.1, an element-wise kernel there.
_ANY = tuple(f"?{kind}{kind}->{kind}" for kind in "?bBhHiIlLqQefdFD")


@dataclass(frozen=True)
class Entry:
    """A name of CuPy: "function", "ufunc", "class" or "attribute", and the rest of its line."""

    kind: str
    rest: tuple[str, ...]


@cache
def entries() -> dict[str, Entry]:
    lines = (Path(__file__).parent / "names.txt").read_text().splitlines()
    words = [line.split() for line in lines if not line.startswith("#")]
    return {name: Entry(kind, tuple(rest)) for name, kind, *rest in words}


def check_call(name: str, n_arguments: int, keywords: tuple[str, ...]) -> None:
    """Raise TypeError unless CuPy's function of this name can be called in this way."""
    entry = entries()[name]
    if entry.kind == "ufunc":
        n_in, n_out = int(entry.rest[0]), int(entry.rest[1])
        wrong = [keyword for keyword in keywords if keyword not in OF_A_UFUNC]
        if wrong or not n_in <= n_arguments <= n_in + n_out:
            raise TypeError(f"{name} takes {n_in} arguments and {OF_A_UFUNC}, got {n_arguments}, {keywords}")
        return
    by_place: list[str] = []
    takes_any_number = is_by_keyword = False
    required, known = set(), set()
    for word in entry.rest:
        if word.startswith("*"):
            takes_any_number |= len(word) > 1
            is_by_keyword = True
            continue
        known.add(word.rstrip("="))
        if not word.endswith("="):
            required.add(word)
        if not is_by_keyword:
            by_place.append(word.rstrip("="))
    if n_arguments > len(by_place) and not takes_any_number:
        raise TypeError(f"{name} takes {len(by_place)} arguments, got {n_arguments}")
    positional = set(by_place[:n_arguments])
    if wrong := [keyword for keyword in keywords if keyword not in known or keyword in positional]:
        raise TypeError(f"{name} has no parameter {wrong}, or it is given twice")
    if missing := required - positional - set(keywords):
        raise TypeError(f"{name} lacks {missing}")


def dtype_of(name: str, values: tuple[Any, ...]) -> np.dtype[Any]:
    """The dtype of a ufunc's result in CuPy 13: that of the first loop to which all arguments can be cast.

    Scalars, including NumPy's, count by their value if an array has their kind or a higher one. `values`
    holds NumPy arrays in place of CuPy's, and none of these is a scalar.
    """
    loops = _ANY if name == "cupy.where" else entries()[name].rest[2:]
    arrays = [value.dtype for value in values if isinstance(value, np.ndarray)]
    highest = max((_rank(dtype) for dtype in arrays), default=-1)
    scalars = [value for value in values if not isinstance(value, np.ndarray)]
    by_value = bool(arrays) and highest >= max(
        (_rank(np.asarray(value).dtype) for value in scalars), default=0
    )
    dtypes = []
    for value in values:
        if isinstance(value, np.ndarray):
            dtypes.append(value.dtype)
        else:
            dtypes.append(np.min_scalar_type(value) if by_value else np.asarray(value).dtype)
    for loop in loops:
        inputs, _, outputs = loop.partition("->")
        if all(np.can_cast(dtype, kind) for dtype, kind in zip(dtypes, inputs, strict=False)):
            return np.dtype(outputs[0])
    raise TypeError(f"{name}: no loop for {[str(dtype) for dtype in dtypes]}")


def _rank(dtype: np.dtype[Any]) -> int:
    return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}[dtype.kind]
