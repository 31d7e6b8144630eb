"""Ladders do the same on a device as on the host."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.measured import Measured
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, rows_of, started
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.model.ladder.choosing import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Streams
from tests.support.ladder.posteriors import posterior_of

_NAMES = ("measure", "forward", "reverse", "rejection", "top")


def _run(posterior: SampledPosterior, xp: Any) -> list[LadderInfo]:
    """Run three ladders of four levels with two lengths of trajectories."""
    path = path_of(posterior)
    trajectories = (
        HybridMarginal(over=("outputs", "precisions"), steps="auto", stepsize="auto", stepsize_jitter=-0.2)
        if posterior.data_model.is_real
        else Hybrid(steps=4, stepsize="auto", stepsize_jitter=-0.2)
    )
    operations = (SampleSigmas(), Rescale(along="incoming", stepsize=0.5), Heatbath(), trajectories)
    settings = LadderSettings((-2.0, -1.0, -0.5), (0.5, 0.4, 0.3, 0.3), (2, 4, 4, 4))
    streams = Streams(3, xp.asarray(rows_of(range(3), 4)))
    iteration = build(path, operations, settings, n_ladders=3, advance=leapfrog.advance)
    state, infos = started(path.prior_draw(streams.at(iteration=0)), 4), []
    for number in range(1, 5):
        state, info = iteration(state, streams.at(iteration=number))
        infos.append(info)
    return infos


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(
    "kind, noise, n_targets",
    [
        ("real", "1:10", 1),
        ("binary", "", 1),
        ("real", "1:10::4", 1),
        ("real", "1::10:4", 2),
        ("real", "1:6:10", 2),
    ],
)
def test_ladders_of_device_and_host_agree(
    kind: Literal["real", "binary"], noise: str, n_targets: int
) -> None:
    import cupy

    runs = [
        _run(posterior_of("tiny7.csv", kind, noise=noise, n_targets=n_targets, xp=xp), xp)
        for xp in (np, cupy)
    ]
    for host, device in zip(*runs, strict=True):
        assert (to_host(device.exchanged) == host.exchanged).all()
        for name in _NAMES:
            got = to_host(getattr(device, name))
            assert np.allclose(got, getattr(host, name), rtol=1e-6, atol=1e-6), name
        assert Measured.of(device).accepted == Measured.of(host).accepted
