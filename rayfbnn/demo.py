"""The robot arm of Neal (1996), from sampling to predictions and pictures: `rayfbnn demo`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rayfbnn import api
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import say
from rayfbnn.output.whole_file import whole_file, whole_files
from rayfbnn.run.on_ray.cluster import check_ray
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.predict import Prediction

FILES = ("robot_arm.toml", "train.csv", "test.csv")


@dataclass(frozen=True)
class Demo:
    """Results of the demonstration, and the files that it wrote.

    pictures is empty if matplotlib is not installed.
    """

    store: Path
    diagnosis: Diagnosis
    prediction: Prediction
    predictions: Path
    pictures: list[Path]


def demo(folder: str | Path = "demo", *, workers: int | None = None, progress: bool = True) -> Demo:
    """Run the robot arm of Neal (1996), from sampling to predictions and pictures.

    A second call continues where an earlier one stopped, or reports again.

    Parameters
    ----------
    folder
        The folder for the configuration, the data, the store run.zarr, predictions.csv and the pictures.
    workers, progress
        See `sample`.

    Returns
    -------
    Demo
        The diagnosis, the prediction, and the files.
    """
    if not isinstance(place_of(folder), Path):
        raise ConfigError(f"folder: must be on a disk, got {place_of(folder)}")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"folder: {folder} is a file; give the path of a folder")
    if not folder.exists():
        check_ray(workers, None)
    with whole_files(folder):
        for name in FILES:
            if not os.path.lexists(folder / name):  # a copy would follow a broken link
                with whole_file(folder / name) as file:
                    file.write((example() / name).read_bytes())
    store, spec, cases = folder / "run.zarr", folder / "robot_arm.toml", folder / "test.csv"
    if store.exists():
        asked, planned = RunSpec.from_toml(spec), Store.open(store).spec.phase[-1].iterations
        asked = asked.with_iterations(max(planned, asked.phase[-1].iterations))
        api.resume(store, spec=asked, workers=workers, progress=progress)
    else:
        api.sample(spec, store, workers=workers, progress=progress)
    tell = say if progress else lambda _: None
    tell("predicting the test cases")
    prediction = api.predict(store, data=cases, out=folder / "predictions.csv")
    tell("comparing the chains")
    diagnosis = cast("Diagnosis", api.diagnose(store))  # of a run of Markov chains
    tell("drawing the pictures")
    return Demo(
        store=store,
        diagnosis=diagnosis,
        prediction=prediction,
        predictions=folder / "predictions.csv",
        pictures=api.plot(store, out=folder, data=cases) if find_spec("matplotlib") else [],
    )


def demo_text(demo: Demo) -> str:
    """Describe the diagnosis, the errors of the predictions, and where the pictures are."""
    lines = [
        str(demo.diagnosis),
        f"\nerrors on the test cases (a row for each case: {demo.predictions})",
        str(demo.prediction),
        "\npictures" if demo.pictures else "\nno pictures: install rayfbnn[plots] for them",
        *(str(picture) for picture in demo.pictures),
    ]
    if not demo.diagnosis.ok:
        lines.append(
            "\nThe sigmas of the weights move slowly in this problem, with little effect on the predictions."
            f" For more draws: rayfbnn resume {shlex.quote(str(demo.store))} --iterations 1000"
        )
    return "\n".join(lines)


def example() -> Path:
    """Return the folder examples/robot_arm of an installed package, or of a checkout."""
    package = Path(__file__).parent
    installed = package / "examples" / "robot_arm"
    return installed if installed.is_dir() else package.parent / "examples" / "robot_arm"
