"""Eleven tables as a data scientist would bring them, and what configures a run of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

N = 600  # rows of a table that is made here, of which 450 are for training
LEVELS = ["poor", "fair", "good"]


@dataclass(frozen=True)
class Task:
    """A table and what a user writes about it.

    kind    the kind of data model
    keys    of `[data]`, besides the names of the files
    n_train rows for training; the others are predicted
    written how pandas writes the file, where that is not as usual
    """

    frame: pd.DataFrame
    kind: str
    keys: dict[str, Any]
    n_train: int = 450
    written: dict[str, Any] | None = None


def _diabetes() -> Task:
    return Task(datasets.load_diabetes(as_frame=True).frame, "real", {"targets": ["target"]}, 300)


def _cars() -> pd.DataFrame:
    """Return prices of used cars, with a column of text, one of truth values and one of ordered levels."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": rng.integers(0, 15, N),
            "km": rng.gamma(3, 30_000, N).round(),
            "fuel": rng.choice(["petrol", "diesel", "electric"], N),
            "automatic": rng.choice([True, False], N),
            "condition": rng.choice(LEVELS, N),
        }
    )
    price = 1000 * frame.fuel.map({"petrol": 22, "diesel": 24, "electric": 35}).to_numpy(float)
    price *= np.exp(-0.12 * frame.age - 0.002 * frame.km / 1000) * (1 + 0.06 * frame.automatic)
    price *= frame.condition.map(dict(zip(LEVELS, (0.8, 1, 1.1), strict=True)))
    return frame.assign(price=(price * np.exp(0.1 * rng.normal(size=N))).round())


def _cancer() -> Task:
    frame = datasets.load_breast_cancer(as_frame=True).frame
    return Task(
        frame.replace({"target": {0: "malignant", 1: "benign"}}), "binary", {"targets": ["target"]}, 400
    )


def _iris() -> Task:
    bunch = datasets.load_iris(as_frame=True)
    frame = bunch.frame.assign(species=bunch.target_names[bunch.target]).drop(columns="target")
    return Task(frame, "class", {"targets": ["species"]}, 100)


def _rentals() -> Task:
    rng = np.random.default_rng(2)
    temperature = rng.uniform(-5, 35, N)
    weekday = rng.choice(["mon", "tue", "wed", "thu", "fri", "sat", "sun"], N)
    log_mean = 1.5 + 0.06 * temperature - 0.0012 * (temperature - 18) ** 2
    rentals = rng.poisson(np.exp(log_mean + 0.3 * np.isin(weekday, ["sat", "sun"])))
    frame = pd.DataFrame({"temperature": temperature, "weekday": weekday, "rentals": rentals})
    return Task(frame, "count", {"targets": ["rentals"]})


def _trial() -> Task:
    rng = np.random.default_rng(3)
    age, treatment = rng.uniform(40, 80, N), rng.choice(["a", "b"], N)
    months = rng.exponential(np.exp(3 - 0.05 * (age - 60) + 0.5 * (treatment == "b")))
    end = rng.uniform(5, 60, N)
    frame = pd.DataFrame(
        {
            "age": age.round(1),
            "treatment": treatment,
            "months": np.minimum(months, end).round(2) + 0.01,
            "censored": (months > end).astype(int),
        }
    )
    return Task(frame, "survival", {"targets": ["months"], "censored": "censored"})


def _latency() -> Task:
    rng = np.random.default_rng(4)
    load = rng.uniform(0, 4, N)
    latency = np.exp(0.5 * load) + (0.1 + 0.3 * load) * rng.normal(size=N)
    frame = pd.DataFrame({"load": load.round(3), "hour": rng.integers(0, 24, N), "latency": latency})
    return Task(frame, "heteroscedastic", {"targets": ["latency"]})


def _gaps() -> Task:
    rng = np.random.default_rng(5)
    frame = _cars().drop(columns=["fuel", "condition"])
    frame = frame.assign(km=frame.km.where(rng.random(N) > 0.15), age=frame.age.where(rng.random(N) > 0.1))
    return Task(frame, "real", {"targets": ["price"], "missing": "indicator"})


def _two_targets() -> Task:
    rng = np.random.default_rng(6)
    inputs, noise = rng.normal(size=(N, 3)), 0.1 * rng.normal(size=(2, N))
    frame = pd.DataFrame(inputs, columns=["a", "b", "c"]).assign(
        y1=np.sin(inputs[:, 0]) + noise[0], y2=inputs[:, 1] * inputs[:, 2] + noise[1]
    )
    return Task(frame, "real", {"targets": ["y1", "y2"]})


def _large() -> Task:
    inputs, y = datasets.make_friedman1(8000, n_features=12, noise=1.0, random_state=3)
    frame = pd.DataFrame(inputs, columns=[f"f{number}" for number in range(12)]).assign(y=y)
    return Task(frame, "real", {"targets": ["y"]}, 6000)


def _decimal_commas() -> Task:
    return Task(_cars(), "real", {"targets": ["price"]}, written={"sep": ";", "decimal": ","})


TASKS: dict[str, Callable[[], Task]] = {
    "regression": _diabetes,
    "text and ordered levels": lambda: Task(
        _cars(), "real", {"targets": ["price"], "ordered": {"condition": LEVELS}}
    ),
    "two classes": _cancer,
    "three classes": _iris,
    "counts": _rentals,
    "survival": _trial,
    "changing noise": _latency,
    "missing inputs": _gaps,
    "two targets": _two_targets,
    "6,000 x 12": _large,
    "decimal commas": _decimal_commas,
}
