"""Ladders do the same on a device as on the host, and the host waits no longer for more of them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda import advance as cuda
from rayfbnn.kernels.cuda import launch_plan
from rayfbnn.mcmc.automatic import fixed_point_sums
from rayfbnn.mcmc.ladder.adaptation import MeasuredLadders
from rayfbnn.mcmc.ladder.iteration import LadderIteration, build
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, rows_of, started
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.model.ladder_path import path_of
from rayfbnn.streams import Streams
from tests.support.ladder.posteriors import posterior_of
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed

# Kind, noise and number of the targets.
PROBLEMS: dict[str, tuple[Literal["real", "binary"], str, int]] = {
    "noise": ("real", "1:10", 1),
    "powers": ("binary", "", 1),
    "t noise": ("real", "1:10::4", 1),
    "t noise of each target": ("real", "1::10:4", 2),
    "two levels of noise": ("real", "1:6:10", 2),
}
KERNELS = ("a warp a chain", "a block a chain", "products", "plain")
_NAMES = ("measure", "forward", "reverse", "rejection", "top")


def _ladders(
    problem: str, xp: Any, *, n_ladders: int = 3, expected: str = ""
) -> tuple[LadderIteration, LadderState, Streams]:
    """Return ladders of four levels with two lengths of trajectories and four stepsizes.

    expected  a part of the name of the code that runs the trajectories
    """
    kind, noise, n_targets = PROBLEMS[problem]
    posterior = posterior_of("tiny7.csv", kind, noise=noise, n_targets=n_targets, xp=xp)
    path = path_of(posterior)
    trajectories = (
        HybridMarginal(over=("outputs", "precisions"), steps="auto", stepsize="auto", stepsize_jitter=-0.2)
        if posterior.data_model.is_real
        else Hybrid(steps=4, stepsize="auto", stepsize_jitter=-0.2)
    )
    operations = (SampleSigmas(), Rescale(along="incoming", stepsize=0.5), Heatbath(), trajectories)
    settings = LadderSettings((-2.0, -1.0, -0.5), (0.5, 0.4, 0.3, 0.2), (2, 4, 4, 4))
    device = "cpu" if xp is np else "gpu"
    streams = choose.streams_class(device)(3, xp.asarray(rows_of(range(n_ladders), 4)))
    advance, name = choose.advance_for(posterior)
    assert expected in name
    iteration = build(path, operations, settings, n_ladders=n_ladders, advance=advance)
    return iteration, started(path.prior_draw(streams.at(iteration=0)), 4), streams


def _run(problem: str, xp: Any, expected: str = "") -> list[LadderInfo]:
    """Run four iterations."""
    iteration, state, streams = _ladders(problem, xp, expected=expected)
    infos = []
    for number in range(1, 5):
        state, info = iteration(state, streams.at(iteration=number))
        infos.append(info)
    return infos


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_ladders_of_device_and_host_agree(monkeypatch: pytest.MonkeyPatch, problem: str, kernel: str) -> None:
    import cupy

    with monkeypatch.context() as patch:
        patch.setenv(choose.VARIABLE, "plain")
        expected = _run(problem, np, "plain")
    if kernel == "plain":
        monkeypatch.setenv(choose.VARIABLE, "plain")
    elif kernel != "a warp a chain":
        monkeypatch.setattr(launch_plan, "_MAX_WARP_WORDS", 0)
    if kernel == "products":
        monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
    for host, device in zip(expected, _run(problem, cupy, kernel), strict=True):
        assert (to_host(device.exchanged) == host.exchanged).all()
        for name in _NAMES:
            got = to_host(getattr(device, name))
            assert np.allclose(got, getattr(host, name), rtol=1e-6, atol=1e-6), name
        assert MeasuredLadders.of(device).accepted == MeasuredLadders.of(host).accepted


@needs_gxx
@pytest.mark.parametrize("problem", ["noise", "powers"])
def test_the_host_waits_for_no_iteration_and_twice_for_its_measurements(problem: str) -> None:
    """Hundreds of ladders take as many launches as three."""
    launches = []
    with installed() as cupy:
        for n_ladders in (3, 40):
            iteration, state, streams = _ladders(problem, cupy, n_ladders=n_ladders)
            state, _ = iteration(state, streams.at(iteration=1))
            with log.recorded() as entries:
                _, info = iteration(state, streams.at(iteration=2))
            assert log.host_reads(entries) == []
            launches.append(log.launches(entries))
            with log.recorded() as entries:
                MeasuredLadders.of(info)
            assert len(log.host_reads(entries)) == 2
    assert launches[0] == launches[1]


def test_measurements_of_all_ladders_are_those_of_each() -> None:
    """In one pass, with values that are not finite, or too large for a sum."""
    info = _run("noise", np)[0]
    info.measure[0, 1], info.measure[1, 2], info.measure[2, 0] = np.nan, -1e300, -np.inf
    with np.errstate(over="ignore"):
        measured = MeasuredLadders.of(info)
        for ladder in range(3):
            row = info.measure[ladder : ladder + 1]
            assert measured.measure[ladder] == fixed_point_sums(row)
            assert measured.squares[ladder] == fixed_point_sums(row**2)
    assert measured.rejection == fixed_point_sums(info.rejection) and measured.ladders == 3
    assert measured.accepted == fixed_point_sums(info.accepted.astype(float))
    assert measured.top == fixed_point_sums(info.top)
    assert all(type(value) is int for row in measured.measure for value in row)
