"""Names of 3,000 characters leave room for the axes of every picture, and for the columns of tables."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from rayfbnn import api  # noqa: E402
from rayfbnn.output.lines import all_shortened, table_text  # noqa: E402
from rayfbnn.pictures import figures

FEW: dict[str, Any] = {"workers": 0, "progress": False}
LEAST = 0.2  # of the width or height of a figure, for its axes together
N = 24


def long(name: str, place: int = 1500) -> str:
    """A name of 3,000 characters that differs from others only at one place."""
    return "n" * place + name + "$_{n}" + "n" * (2995 - place - len(name))


NAMES: dict[str, Callable[[str], str]] = {
    "middle": long,
    "end": lambda name: long(name, 2990),
    "blanks": lambda name: " ".join(["word"] * 600) + name,
}
MODELS = {"real": np.sin(np.arange(N)), "class": np.arange(N) % 3, "survival": 1.0 + np.arange(N) % 7}


def table(kind: str, name: Callable[[str], str]) -> pd.DataFrame:
    n = np.arange(N)
    levels = np.array([name("blue"), name("red")])[n % 2]
    frame = pd.DataFrame({name("a"): np.cos(n), name("b"): n % 5, name("k"): levels, name("y"): MODELS[kind]})
    if kind == "class":
        frame[name("y")] = np.array([name("one"), name("three"), name("two")])[n % 3]
    return frame


QUICK = [("real", "middle")]
LONG = [pair for pair in itertools.product(MODELS, NAMES) if pair not in QUICK]


@pytest.mark.parametrize(
    ("kind", "form"), [*QUICK, *(pytest.param(*pair, marks=pytest.mark.long) for pair in LONG)]
)
def test_the_axes_keep_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    data = table(kind, NAMES[form])
    spec: dict[str, Any] = {"data": {"targets": [NAMES[form]("y")]}, "model": {"kind": kind}, "chains": 2}
    spec |= {"iterations": 8, "network": {"hidden": [{"units": 2}]}}
    api.sample(spec, tmp_path / "run.zarr", data=data, **FEW)
    sizes = []

    def measured(figure: Any, path: Any, save: Any = figures.save) -> Path:
        written: Path = save(figure, path)
        boxes = [axis.get_window_extent() for axis in figure.findobj(lambda part: hasattr(part, "get_xlim"))]
        wide = sum({round(box.x0): box.width for box in boxes}.values()) / figure.bbox.width
        high = sum({round(box.y0): box.height for box in boxes}.values()) / figure.bbox.height
        sizes.append((written.name, wide, high))
        return written

    for module in list(sys.modules.values()):
        if module.__name__.startswith("rayfbnn.pictures.") and hasattr(module, "save"):
            monkeypatch.setattr(module, "save", measured)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(collapsed|Tight layout|Glyph)")
        pictures = api.plot(tmp_path / "run.zarr", out=tmp_path / "pictures", data=data)
        report = api.report(tmp_path / "run.zarr", out=tmp_path / "report.html", data=data, progress=False)
    assert report.exists() and len(sizes) == len(pictures) > 2
    assert min(min(wide, high) for _, wide, high in sizes) > LEAST, sizes


@pytest.mark.parametrize("form", NAMES)
def test_hundreds_of_long_names_stay_different_and_short(form: str) -> None:
    names = [NAMES[form](str(number)) for number in range(300)]
    texts = all_shortened(["x", *names])
    assert len(set(texts)) == 301 and max(map(len, texts)) <= 40 and texts[0] == "x"
    lines = table_text(["", *names[:3]], [[name, "1", "2", "3"] for name in names], width=80).splitlines()
    assert (
        max(map(len, lines)) <= 320 and len([line for line in lines if line.startswith(names[0][:20])]) >= 300
    )
