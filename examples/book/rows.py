"""The rows of the book's figures and tables: which configuration, with which changes, on which cases."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARM_TEST, LED_TEST = "data/arm_test.csv.gz", "../led/test.csv.gz"
INPUTS = [f"x{number}" for number in range(1, 7)]
Phase = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One run of a figure or table.

    name         of its store; begins with the number of a figure
    base         the configuration, without .toml
    figures      that use the run
    set          changes of the configuration, as with --set
    after        number of phases of the configuration that are kept, before `phases`; None for all
    train, test  which cases of the training file; the test file, and which of its cases (pandas queries)
    summaries    names of functions in summaries.py
    kind         "exact" or "prior" for draws without a Markov chain, "maximum" for maximum likelihood
    skip         draws of each chain that predictions leave out
    """

    name: str
    base: str
    figures: tuple[str, ...]
    set: tuple[str, ...] = ()
    after: int | None = None
    phases: tuple[Phase, ...] = ()
    train: str = ""
    test: tuple[str, str] | None = None
    summaries: tuple[str, ...] = ()
    kind: str = "mcmc"
    skip: int = 0

    def configuration(self, length: float = 1.0) -> dict[str, Any]:
        """Return the configuration as nested dictionaries, with the iterations of a shorter run."""
        configuration = tomllib.loads((HERE / f"{self.base}.toml").read_text())
        phases = [*configuration.get("phase", [])[: self.after], *self.phases]
        if phases:
            configuration["phase"] = [shortened(phase, length) for phase in phases]
        return configuration

    @property
    def train_path(self) -> Path:
        """The file of the training cases."""
        return HERE / str(self.configuration()["data"]["train"])


def shortened(phase: Phase, length: float) -> Phase:
    """Return a phase with a share of its iterations, or of what one iteration repeats, but at least two."""
    if phase["iterations"] > 1:
        return phase | {"iterations": at_length(phase["iterations"], length)}
    return phase | {
        "operations": [
            operation | {"times": at_length(operation["times"], length)}
            if operation["op"] == "repeat"
            else operation
            for operation in phase["operations"]
        ]
    }


def at_length(number: int, length: float) -> int:
    """Return the number of iterations, draws, or repetitions of a shorter run."""
    return max(min(number, 2), round(number * length))


def phase(iterations: int, operations: Sequence[dict[str, Any]], *, times: int = 1, **keys: Any) -> Phase:
    """Return a phase that repeats operations in each iteration."""
    repeated = [{"op": "repeat", "times": times, "operations": list(operations)}]
    return {"iterations": iterations, "operations": repeated if times > 1 else list(operations), **keys}


def pair(steps: int, stepsize: float, partitions: int = 1, window: int = 1) -> list[dict[str, Any]]:
    """Return Gibbs updates of the hyperparameters and one update by hybrid Monte Carlo."""
    trajectory: dict[str, Any] = {"op": "hybrid", "steps": steps, "stepsize": stepsize}
    if partitions > 1:
        trajectory["partitions"] = partitions
    if window > 1:
        trajectory["window"] = window
    return [{"op": "sample-sigmas"}, {"op": "heatbath"}, trajectory]


def log_spaced(low: float, high: float, n: int = 21) -> list[float]:
    """Return numbers at even distances on a log scale, to three digits."""
    return [float(f"{low * (high / low) ** (k / (n - 1)):.3g}") for k in range(n)]


def rows() -> list[Row]:
    """Return all rows, those of one figure together."""
    return [
        *_six_points(),
        *_progress(),
        *_stepsizes(),
        *_sampling(),
        *_random_walks(),
        *_sizes(),
        *_maximum_likelihood(),
        *_led(),
        *_inputs(),
        *_boston(),
        *_folds(),
        *_glass(),
    ]


def _six_points() -> list[Row]:
    return [
        Row(f"1.2-{kind}", "six_points", ("1.2",), kind=kind, summaries=("functions",))
        for kind in ("prior", "exact")
    ]


def _progress() -> list[Row]:
    """Return the initial phase with trajectories of several lengths, and one long trajectory."""
    by_length = [
        Row(
            f"3.2-L{steps}",
            "arm_progress",
            ("3.2",),
            after=0,
            phases=(phase(20, pair(steps, 0.3), times=1024 // steps),),
            train="",
            summaries=("training_errors",),
        )
        for steps in (1024, 256, 64, 16, 4)
    ]
    return [*by_length, Row("3.4", "arm_trajectory", ("3.4",), summaries=("along_trajectory",))]


def _stepsizes() -> list[Row]:
    """Return trajectories with many stepsizes: full and partial gradients, without and with windows."""
    found = [_sweep("3.3", ("3.3",), 100, log_spaced(0.158, 1.58))]
    for partitions, window in itertools.product((1, 4, 16), (1, 20)):
        figure = "3.10" if window == 1 else "3.11"
        name, etas = f"{figure}-K{partitions}", log_spaced(0.1, 2.0)
        found.append(_sweep(name, (figure,), 200, etas, partitions, window))
    return found


def _sweep(name: str, figures: tuple[str, ...], steps: int, etas: list[float], *options: int) -> Row:
    phases = tuple(phase(10, pair(steps, eta, *options)) for eta in etas)
    return Row(name, "arm_equilibrium", figures, after=2, phases=phases, summaries=("energy_errors",))


def _sampling() -> list[Row]:
    """Return the sampling phase with trajectories of several lengths, partial gradients, and persistence."""
    options: dict[str, Any] = {"test": (ARM_TEST, ""), "skip": 50}
    summaries = ("magnitudes", "noise")
    found = []
    for steps in (125, 500, 2000, 8000, 32000):
        last = phase(150, pair(steps, 0.3), times=32000 // steps)
        figures = ("3.5", "3.6", "3.7", "3.8") if steps == 8000 else ("3.5", "3.6")
        more = (*summaries, "errors_of_runs", "at_point") if steps == 8000 else summaries
        found.append(Row(f"3.6-L{steps}", "arm", figures, after=1, phases=(last,), summaries=more, **options))
    for window in (1, 20):
        last = phase(150, pair(4000, 0.6, 4, window), times=8)
        name = f"3.5.2-W{window}"
        found.append(Row(name, "arm", ("3.6",), after=1, phases=(last,), summaries=summaries, **options))
    return found


def _random_walks() -> list[Row]:
    """Return 200 super-transitions of 2,000 updates by Metropolis, Langevin, and hybrid Monte Carlo."""
    methods = {
        f"{method}-{eta}": (_update(method, eta), 2000)
        for method in ("metropolis", "langevin")
        for eta in (0.1, 0.3, 0.9, 2.7)
    }
    methods["hybrid-0.3"] = (pair(2000, 0.3), 1)
    return [
        Row(
            f"3.9-{name}",
            "arm_equilibrium",
            ("3.9",),
            set=("chains=1", "chains_per_batch=1"),
            after=2,
            phases=(phase(200, operations, times=times),),
            summaries=("explored",),
        )
        for name, (operations, times) in methods.items()
    ]


def _update(method: str, eta: float) -> list[dict[str, Any]]:
    if method == "langevin":
        return pair(1, eta)
    return [{"op": "sample-sigmas"}, {"op": "metropolis", "stepsize": eta}]


def _sizes() -> list[Row]:
    """Return networks of several sizes on three training sets."""
    found = []
    for units, steps, eta, discarded in (
        (6, 4000, 0.5, 200),
        (8, 4000, 0.5, 100),
        (16, 4000, 0.5, 100),
        (32, 5000, 0.4, 200),
    ):
        operations = pair(steps, eta, 5, 10)
        phases = (phase(discarded, operations, times=10, keep=False), phase(200, operations, times=10))
        for cases, (prior, width) in itertools.product(
            "ABC", (("gaussian", "x0.1:0.1"), ("cauchy", "x0.1:0.1:1"))
        ):
            has_cloud = cases == "A" and prior == "gaussian"
            found.append(
                Row(
                    f"4.2-{cases}-{units}-{prior}",
                    "arm_sizes",
                    ("4.1", "4.2", *(("4.3",) if has_cloud else ())),
                    set=(f"network.hidden[0].units={units}", f"network.priors.ho0={width}"),
                    after=2,
                    phases=phases,
                    train=f"training_set == '{cases}'",
                    test=(ARM_TEST, ""),
                    summaries=("noise", *(("cloud",) if has_cloud else ())),
                )
            )
    return found


def _maximum_likelihood() -> list[Row]:
    """Return maximum likelihood learning on training set A with networks of several sizes."""
    return [
        Row(
            f"4.4-{units}",
            "arm_sizes",
            ("4.4",),
            set=(f"network.hidden[0].units={units}",),
            train="training_set == 'A'",
            test=(ARM_TEST, ""),
            kind="maximum",
        )
        for units in (6, 8, 16)
    ]


def _led() -> list[Row]:
    """Return the LED display: three training sets, with and without hidden units, useless inputs, and ARD."""
    found = []
    for number, n_inputs, units, has_ard in itertools.product((1, 2, 3), (7, 24), (0, 8), (False, True)):
        changes = [] if n_inputs == 24 else ['data.inputs=["s*"]']
        if not has_ard:
            changes += ["network.priors.io=1:0.2"] + ["network.priors.ih0=1:0.2"] * (units > 0)
        shows_inputs = units == 0 and n_inputs == 24
        found.append(
            Row(
                f"4.6-{number}-{n_inputs}-{units}-{'ard' if has_ard else 'no'}",
                "led" if units else "led_linear",
                ("4.6", *(("4.7",) if shows_inputs else ())),
                set=tuple(changes),
                train=f"training_set == {number}",
                test=(LED_TEST, ""),
                summaries=("input_magnitudes",) if shows_inputs else (),
            )
        )
    return found


def _inputs() -> list[Row]:
    """Return the robot arm with inputs that are of no use, by the prior of the weights into hidden units."""
    found = []
    for name, width, inputs in (
        ("none", "0.1:0.1", INPUTS),
        ("one", "0.1::0.1", INPUTS),
        ("two", "0.1:0.001:0.5", INPUTS),
        ("only-two-inputs", "0.1:0.1", INPUTS[:2]),
    ):
        changes = (f"network.priors.ih0={width}", f"data.inputs={inputs}".replace("'", '"'))
        found.append(
            Row(
                f"4.8-{name}",
                "arm_inputs",
                ("4.8",),
                set=changes,
                test=(ARM_TEST, ""),
                summaries=("input_magnitudes", "noise"),
                skip=50,
            )
        )
    return found


def _boston() -> list[Row]:
    half: dict[str, Any] = {"train": "half == 'train'", "test": ("data/boston.csv", "half == 'test'")}
    found = [Row("4.10-none", "boston_linear", ("4.10",), **half)]
    for units, prior in ((8, "gaussian"), (8, "cauchy"), (14, "cauchy")):
        operations = pair(1500, 0.6, 5, 10)
        n_used = 200 if units == 14 else 150
        changes = (f"network.hidden[0].units={units}",)
        changes += ("network.priors.ho0=x0.1:0.1",) * (prior == "gaussian")
        phases = (phase(100, operations, times=10, keep=False), phase(n_used, operations, times=10))
        name = f"4.10-{units}-{prior}"
        found.append(Row(name, "boston", ("4.10",), set=changes, after=2, phases=phases, **half))
    return [*found, Row("4.10-6+6", "boston_two_layers", ("4.10",), **half)]


def _folds() -> list[Row]:
    return [
        Row(
            f"4.11-{name}-{fold}",
            base,
            ("4.11",),
            train=f"fold != {fold}",
            test=("data/boston.csv", f"fold == {fold}"),
        )
        for name, base in (("none", "boston_linear"), ("6+6", "boston_folds"))
        for fold in range(10)
    ]


def _glass() -> list[Row]:
    cases: dict[str, Any] = {
        "train": "split == 'train'",
        "test": ("data/glass.csv", "split == 'test'"),
        "summaries": ("merged_windows",),
    }
    plain = ("network.priors.ih0=0.1:1", "network.priors.io=0.1:1")
    vague = tuple(
        f"network.priors.{name}"
        for name in ("ih0=0.1:0.001:0.5", "bh0=0.1:0.1", "ho0=x0.1:0.1:1", "io=0.1:0.001:0.5", "bo=0.1:1")
    )
    progress = cases | {"summaries": ("merged_windows", "vagueness")}
    return [
        Row("4.13-0-no", "glass_linear", ("4.13",), set=("network.priors.io=0.1:0.1",), **cases),
        Row("4.13-0-ard", "glass_linear", ("4.13",), **cases),
        Row("4.13-6-no", "glass", ("4.13",), set=plain, **cases),
        Row("4.13-6-ard", "glass", ("4.13", "4.14"), **progress),
        Row("4.13-6-vaguer", "glass", ("4.13", "4.14"), set=vague, **progress),
        Row("4.13-12-ard", "glass", ("4.13",), set=("network.hidden[0].units=12",), **cases),
    ]
