"""The robot arm from nothing to a picture: what `rayfbnn demo` does."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn import api
from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.reduce.diagnostics import Diagnosis
    from rayfbnn.reduce.predict import Prediction

FILES = ("robot_arm.toml", "train.csv", "test.csv")


@dataclass(frozen=True)
class Demo:
    """What the demonstration found and wrote; pictures is empty where matplotlib is not installed."""

    store: Path
    diagnosis: Diagnosis
    prediction: Prediction
    predictions: Path
    pictures: list[Path]


def demo(folder: str | Path = "demo", *, workers: int | None = None, progress: bool = True) -> Demo:
    """Sample the robot arm into `folder`, or go on where an earlier demonstration stopped; then report.

    The folder gets the configuration, the data, the store run.zarr, predictions.csv and the pictures.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"folder: is a file, got {folder}; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if not (folder / name).exists():
            shutil.copyfile(example() / name, folder / name)
    store, spec, cases = folder / "run.zarr", folder / "robot_arm.toml", folder / "test.csv"
    if store.exists():
        api.resume(store, spec=_as_long(spec, store), workers=workers, progress=progress)
    else:
        api.sample(spec, store, workers=workers, progress=progress)
    prediction = api.predict(store, data=cases, out=folder / "predictions.csv")
    return Demo(
        store=store,
        diagnosis=api.diagnose(store),
        prediction=prediction,
        predictions=folder / "predictions.csv",
        pictures=_pictures(store, folder, cases),
    )


def _as_long(path: Path, store: Path) -> RunSpec:
    """The configuration in `path`, as long as the run in `store` if that was made longer since."""
    spec, planned = RunSpec.from_toml(path), Store.open(store).spec.phase[-1].iterations
    return spec.with_iterations(max(planned, spec.phase[-1].iterations))


def example() -> Path:
    """The folder of examples/robot_arm: inside an installed package, beside the package in a checkout."""
    package = Path(__file__).parent
    installed = package / "examples" / "robot_arm"
    return installed if installed.is_dir() else package.parent / "examples" / "robot_arm"


def _pictures(store: Path, folder: Path, cases: Path) -> list[Path]:
    return api.plot(store, out=folder, data=cases) if find_spec("matplotlib") else []
