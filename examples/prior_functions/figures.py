"""Redraws figures 2.1 to 2.10 of Neal, Bayesian Learning for Neural Networks (1996), from draws of the prior.

    python figures.py [FOLDER] [--only 2.1]

Each picture is drawn from stores that `rayfbnn.prior` makes; the book's captions say which priors.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from gaussian_process import limit_covariance  # next to this file
from matplotlib.figure import Figure

import rayfbnn
from rayfbnn.draws.outputs import network_values, variation
from rayfbnn.draws.view import Draws, committed
from rayfbnn.store.store import Store

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#666666"
GAUSSIAN = {"ih0": "1", "bh0": "1", "ho0": "x1", "bo": "1"}
STYLE = {"font.size": 9, "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False}
Array = Any


class Prior:
    """Draws from priors, each a store in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, 0

    def store(
        self,
        hidden: list[tuple[int, str]],
        priors: dict[str, str],
        *,
        draws: int = 1,
        seed: int = 1,
        inputs: int = 1,
    ) -> Draws:
        """`draws` networks whose hidden layers have so many units of such an activation."""
        layers = ", ".join(f'{{ units = {units}, activation = "{kind}" }}' for units, kind in hidden)
        named = ", ".join(f'{group} = "{text}"' for group, text in priors.items())
        self.made += 1
        path = self.folder / f"{self.made}.zarr"
        replaced = [f"network.hidden=[{layers}]", f"network.priors={{ {named} }}", f"seed={seed}"]
        replaced.append(f"data.inputs={json.dumps(['x1', 'x2'][:inputs])}")
        rayfbnn.prior(HERE / "prior.toml", path, draws=draws, set=replaced)
        return committed(Store.open(path))

    def lines(self, x: Array, *arguments: Any, **settings: Any) -> Array:
        """Functions of one input at the points x, (n_draws, n_points)."""
        return network_values(self.store(*arguments, **settings), x[:, None])[:, :, 0]

    def surface(self, side: int, *arguments: Any, **settings: Any) -> Array:
        """One function of two inputs on a square grid from -1 to 1, (side, side)."""
        x = np.linspace(-1, 1, side)
        points = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
        store = self.store(*arguments, inputs=2, **settings)
        return network_values(store, points)[0, :, 0].reshape(side, side)


def wide(width: str) -> dict[str, str]:
    """Gaussian priors with this sigma for the weights and biases into the hidden layer."""
    return GAUSSIAN | {"ih0": width, "bh0": width}


def fractional(eta: float) -> dict[str, str]:
    """A fractional Brownian prior: each unit has an adjustment, alpha = eta - 1 (section 2.1.4)."""
    return GAUSSIAN | {"ah0": f"{eta - 1:g}"}


def panels(rows: int, columns: int, width: float, height: float, **settings: Any) -> tuple[Figure, Array]:
    figure = Figure(figsize=(width, height), layout="constrained", dpi=100)
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def draw_lines(axis: Any, x: Array, functions: Array) -> None:
    for function, colour in zip(functions, (BLUE, ORANGE), strict=True):
        axis.plot(x, function, color=colour, lw=0.7)
    axis.set_xlim(x[0], x[-1])


def figure_2_1(prior: Prior) -> Figure:
    """Convergence to a Gaussian process: two values of 1000 functions of 1, 3 and 10 tanh units."""
    figure, axes = panels(1, 3, 9, 3.5, sharex=True, sharey=True)
    at = np.array([-0.2, 0.4])
    priors = {"ih0": "5", "bh0": "5", "ho0": "x1", "bo": "0.1"}
    for axis, units in zip(axes[0], (1, 3, 10), strict=True):
        values = prior.lines(at, [(units, "tanh")], priors, draws=1000)
        axis.plot(values[:, 0], values[:, 1], ".", ms=2, color=BLUE)
        axis.set(title=f"{units} unit{'s' if units > 1 else ''}", xlabel="f(-0.2)", aspect="equal")
        axis.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
    axes[0, 0].set_ylabel("f(0.4)")
    return figure


def two_sizes(
    prior: Prior, sizes: tuple[int, int], priors: dict[str, str], *, seed: int, chosen: tuple[int, int]
) -> Figure:
    """Step functions from networks of two sizes: their whole shape above, the middle below."""
    figure, axes = panels(2, 2, 9, 5.5)
    for column, units in enumerate(sizes):
        store = prior.store([(units, "step")], priors, draws=max(chosen) + 1, seed=seed)
        for axis, reach in zip(axes[:, column], (10, 1), strict=True):
            x = np.linspace(-reach, reach, 2000)
            draw_lines(axis, x, network_values(store, x[:, None])[list(chosen), :, 0])
        axes[0, column].set_title(f"{units:,} step units")
    for axis in axes[1]:
        axis.set_xlabel("x")
    return figure


def figure_2_2(prior: Prior) -> Figure:
    """Brownian functions from step units, Gaussian priors."""
    return two_sizes(prior, (300, 10_000), GAUSSIAN, seed=3, chosen=(0, 1))


def figure_2_3(prior: Prior) -> Figure:
    """Smooth functions from tanh units, with the random numbers of 2.2."""
    figure, axes = panels(1, 2, 9, 3)
    x = np.linspace(-1, 1, 1000)
    for axis, width in zip(axes[0], ("5", "20"), strict=True):
        draw_lines(axis, x, prior.lines(x, [(10_000, "tanh")], wide(width), draws=2, seed=3))
        axis.set(title=rf"10,000 tanh units, $\sigma_u = \sigma_a = {width}$", xlabel="x")
    return figure


def figure_2_4(prior: Prior) -> Figure:
    """Fractional Brownian functions."""
    figure, axes = panels(1, 2, 9, 3)
    x = np.linspace(-1, 1, 2000)
    for axis, eta in zip(axes[0], (1.3, 1.7), strict=True):
        draw_lines(axis, x, prior.lines(x, [(10_000, "tanh")], fractional(eta), draws=2, seed=3))
        axis.set(title=rf"10,000 tanh units, $\eta = {eta}$", xlabel="x")
    return figure


def figure_2_5(prior: Prior) -> Figure:
    """D(x - s/2, x + s/2) at x = 0.2, from 100,000 hidden units for each prior."""
    figure, axes = panels(1, 2, 9, 4, sharey=True)
    left = [
        ("step", GAUSSIAN, "Brownian: step", 1.0),
        ("tanh", wide("20"), r"smooth: tanh, $\sigma_u=20$", 2.0),
    ]
    left.append(("tanh", wide("5"), r"smooth: tanh, $\sigma_u=5$", 2.0))
    right = [("tanh", fractional(eta), rf"tanh, $\eta={eta:g}$", min(eta, 2.0)) for eta in (1.3, 1.7, 3.0)]
    s = np.logspace(-3, 0, 25)
    for axis, cases in zip(axes[0], (left, right), strict=True):
        for (kind, priors, label, slope), colour in zip(cases, (BLUE, ORANGE, GREEN), strict=True):
            store = prior.store([(100_000, kind)], priors)
            found = variation(store, np.array([0.2]), s, layer=0).value
            axis.loglog(s, found, ".-", ms=4, lw=0.8, color=colour, label=label)
            guide = found[8] * (s[:9] / s[8]) ** slope
            axis.loglog(s[:9], guide / 1.6, "--", lw=0.8, color=colour, label=f"slope {slope:g}")
            if kind == "step":
                limit = [step_variation(store, 0.2, each) for each in s]
                axis.loglog(s, limit, "-", lw=0.8, color="black", zorder=0, label="step, closed form")
        axis.set_xlabel("s")
        axis.legend(frameon=False, fontsize=8)
    axes[0, 0].set_ylabel("D(0.2 - s/2, 0.2 + s/2)")
    return figure


def step_variation(run: Draws, x: float, s: float) -> float:
    k = limit_covariance(run.spec.network, np.array([[x - s / 2], [x + s / 2]]))
    return float(k[0, 0] + k[1, 1] - 2 * k[0, 1])


def surfaces(drawn: list[tuple[str, Array]], columns: int) -> Figure:
    """Functions of two inputs, seen from above at an angle."""
    rows = -(-len(drawn) // columns)
    figure, axes = panels(rows, columns, 4 * columns, 3.4 * rows, subplot_kw={"projection": "3d"})
    for axis, (title, values) in zip(axes.ravel(), drawn, strict=True):
        x = np.linspace(-1, 1, len(values))
        axis.plot_surface(*np.meshgrid(x, x), values, cmap="viridis", lw=0, rcount=150, ccount=150)
        axis.set_title(title, y=1.0)
        axis.view_init(elev=38, azim=-60)
        axis.tick_params(labelsize=7, pad=-2)
        axis.locator_params(nbins=3)
    return figure


def figure_2_6(prior: Prior) -> Figure:
    """Functions of two inputs: Brownian, smooth, fractional Brownian."""
    drawn = [
        ("step units", prior.surface(80, [(10_000, "step")], wide("10"), seed=2)),
        ("tanh units, same random numbers", prior.surface(80, [(10_000, "tanh")], wide("10"), seed=2)),
        (r"$\eta = 1.3$", prior.surface(80, [(10_000, "tanh")], fractional(1.3), seed=2)),
        (r"$\eta = 1.7$", prior.surface(80, [(10_000, "tanh")], fractional(1.7), seed=2)),
    ]
    return surfaces(drawn, 2)


def figure_2_7(prior: Prior) -> Figure:
    """Cauchy priors for output weights and bias: large jumps by single units."""
    priors = GAUSSIAN | {"ho0": "x1:::1", "bo": "1::1"}
    return two_sizes(prior, (150, 10_000), priors, seed=1, chosen=(1, 4))  # as in the book, two of a few


def figure_2_8(prior: Prior) -> Figure:
    """Output weights from t distributions with 0.5, 1 and 1.5 degrees of freedom."""
    drawn = []
    for alpha, seed in ((0.5, 4), (1.0, 2), (1.5, 1)):
        priors = wide("20") | {"ho0": f"x1:::{alpha:g}", "bo": f"1::{alpha:g}"}
        for kind in ("step", "tanh"):
            values = prior.surface(100, [(1000, kind)], priors, seed=seed)
            drawn.append((rf"{kind} units, $\alpha = {alpha:g}$", values))
    return surfaces(drawn, 2)


def figure_2_9(prior: Prior) -> Figure:
    """One, two and three layers of 2000 step units: rougher with each layer."""
    figure, axes = panels(3, 1, 8, 7, sharex=True)
    x = np.linspace(-1, 1, 500)
    for axis, n_layers in zip(axes[:, 0], (1, 2, 3), strict=True):
        priors = {"ih0": "1", f"ho{n_layers - 1}": "x1", "bo": "1"}
        priors |= {f"bh{layer}": "1" for layer in range(n_layers)}
        priors |= {f"h{layer - 1}h{layer}": "x1" for layer in range(1, n_layers)}
        values = prior.lines(x, [(2000, "step")] * n_layers, priors, seed=1)
        axis.plot(x, values[0], ".", ms=2.5, color=BLUE)
        axis.set_title(f"{n_layers} layer{'s' if n_layers > 1 else ''} of 2000 step units")
    axes[-1, 0].set_xlabel("x")
    return figure


def figure_2_10(prior: Prior) -> Figure:
    """Two layers of tanh units, the outer weights from a t distribution with 0.6 degrees of freedom."""
    priors = {"ih0": "10", "bh0": "10", "h0h1": "x20", "bh1": "20", "ho1": "x1:::0.6"}
    seeds = (5, 9)
    drawn = [("", prior.surface(100, [(500, "tanh"), (300, "tanh")], priors, seed=seed)) for seed in seeds]
    return surfaces(drawn, 2)


FIGURES: dict[str, Callable[[Prior], Figure]] = {
    "2.1": figure_2_1,
    "2.2": figure_2_2,
    "2.3": figure_2_3,
    "2.4": figure_2_4,
    "2.5": figure_2_5,
    "2.6": figure_2_6,
    "2.7": figure_2_7,
    "2.8": figure_2_8,
    "2.9": figure_2_9,
    "2.10": figure_2_10,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("prior_figures"))
    parser.add_argument("--only", action="append", choices=FIGURES, metavar="2.N")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(exist_ok=True)
    for name in asked.only or FIGURES:
        with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(STYLE):
            path = asked.folder / f"figure_{name.replace('.', '_')}.png"
            FIGURES[name](Prior(Path(folder))).savefig(path)
            print(path, flush=True)


if __name__ == "__main__":
    main()
