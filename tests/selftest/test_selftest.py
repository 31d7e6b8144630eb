"""The verb `selftest`: it passes here, faults put in make it fail, and it needs only NumPy and SciPy."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from rayfbnn.arrays import gpu_is_available
from rayfbnn.cli import app
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.model import integrated, network, sampled
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest import selftest
from rayfbnn.selftest.selftest import Judgement
from tests.support.mutants import mutant, sampled_with, schedule_with

CHAINS = 2_000


def test_selftest_passes_here() -> None:
    result = CliRunner().invoke(app, ["selftest", "--seed", "3", "--chains", str(CHAINS)])
    assert result.exit_code == 0, result.output
    assert "FAILED" not in result.output
    assert "ok: all 35 tests passed on cpu, seed 3" in result.output


def test_columns_are_at_least_two_spaces_apart_and_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [(test, subject) for test, subject, _ in selftest._tests(np, 1, CHAINS)]

    def quick(xp: ModuleType, seed: int, chains: int) -> Iterator[tuple[str, str, partial[Judgement]]]:
        for test, subject in names:
            yield test, subject, partial(tuple, ("p = 1.2e-05", "level 1e-05", True))

    monkeypatch.setattr(selftest, "_tests", quick)
    result = CliRunner().invoke(app, ["selftest"])
    header, *rows = result.output.splitlines()[:-1]
    assert re.split(" {2,}", header) == ["test", "of", "found", "allowed", "verdict"]
    cells = [(test, subject, "p = 1.2e-05", "level 1e-05", "ok") for test, subject in names]
    assert [tuple(re.split(" {2,}", row)) for row in rows] == cells
    assert {row.index("p = ") for row in rows} == {header.index("found")}


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run trajectories by array code: kernels do not know a changed copy of a posterior's class."""
    monkeypatch.setattr(choose, "advance_for", lambda target: (leapfrog.advance, "plain"))


def with_wrong_gradient() -> type:
    """Posteriors whose tanh has a wrong slope."""
    wrong = mutant(network, ("xp.subtract(1, slope, out=slope)", "xp.subtract(1.2, slope, out=slope)"))
    return sampled_with(wrong).SampledPosterior  # type: ignore[no-any-return]


def test_a_broken_gradient_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SampledPosterior", with_wrong_gradient())
    without_kernels(monkeypatch)
    result = CliRunner().invoke(app, ["selftest", "--chains", "1000"])
    assert result.exit_code == 1
    assert "gradient        real" in result.output and "FAILED" in result.output
    # Steps and decisions agree with one another, so that only the gradient itself shows the fault.
    failed = [line.split()[0] for line in result.output.splitlines() if line.endswith("FAILED")]
    assert set(failed) == {"gradient"} and len(failed) == 6
    assert "6 of 35 tests failed on cpu: gradient of real" in result.output


def passes(judgement: Judgement) -> bool:
    return judgement[2]


def with_gibbs(*replacement: str) -> type:
    return sampled_with(mutant(gibbs, replacement)).SampledPosterior  # type: ignore[arg-type,no-any-return]


def test_steps_that_do_not_reverse_make_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes(selftest.reversal_of("real", np, 1))
    changed = mutant(leapfrog, ("composition.kick(number, last)", "float(number < last)"))
    monkeypatch.setattr(selftest, "leapfrog", changed)
    assert not passes(selftest.reversal_of("real", np, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accepted = xp.log(streams.uniform(Purpose.ACCEPT)) < -energy_change", "accepted = diverged | True"),
        ("score = log_weight + gumbel", "score = xp.where(is_member, 0.0, -xp.inf)"),
    ],
)
def test_wrong_decisions_make_it_fail(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setattr(selftest, "schedule", schedule_with(mutant(hmc, (old, new))))
    assert not passes(selftest.toy_target("windows, partial gradients", np, 1, 10_000, "float64"))


def test_a_wrong_gibbs_update_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = with_gibbs("(alpha + n) / 2, (alpha", "(alpha + n - 1) / 2, (alpha")
    monkeypatch.setattr(selftest, "SampledPosterior", wrong)
    without_kernels(monkeypatch)
    assert not passes(selftest.joint("real", np, 1, CHAINS, "float64"))


def test_output_weights_that_are_not_redrawn_make_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = integrated.WithoutOutputs.complete

    def kept(self, state, moved, streams):  # type: ignore[no-untyped-def]
        made = complete(self, state, moved, streams)
        made.position[:, self.n_kept :] = state.position[:, self.n_kept :]
        return made

    monkeypatch.setattr(integrated.WithoutOutputs, "complete", kept)
    assert not passes(selftest.joint("real, hybrid-marginal", np, 1, CHAINS, "float64"))


@pytest.mark.parametrize("name", ["real", "real, hybrid-marginal"])
def test_a_kernel_with_other_stepsizes_makes_it_fail(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert passes(selftest.agreement_of(name, np, 1))
    chosen = choose.advance_for

    def stretched(posterior):  # type: ignore[no-untyped-def]
        advance, kernel = chosen(posterior)

        def wrong(target, trajectory, **settings):  # type: ignore[no-untyped-def]
            longer = replace(trajectory, stepsizes=1.01 * trajectory.stepsizes)
            return advance(target, longer, **settings)

        return wrong, kernel

    monkeypatch.setattr(choose, "advance_for", stretched)
    assert not passes(selftest.agreement_of(name, np, 1))


def test_wrong_random_numbers_make_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes(selftest.known_answers(np))
    monkeypatch.setattr(selftest, "philox", lambda counter, key: counter)
    assert not passes(selftest.known_answers(np))


def test_float32_that_is_float16_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Coarse(sampled.SampledPosterior):
        def potential_and_gradient(self, position, precisions, **options):  # type: ignore[no-untyped-def]
            return super().potential_and_gradient(
                position.astype("float16").astype(position.dtype), precisions, **options
            )

    def coarse(name, xp, dtype):  # type: ignore[no-untyped-def]
        made = problem_posterior(name, xp, dtype)
        return Coarse(**vars(made)) if dtype == "float32" else made

    problem_posterior = selftest.SmallProblem.posterior
    monkeypatch.setattr(selftest.SmallProblem, "posterior", coarse)
    assert not passes(selftest.agreement_of("t noise, every level", np, 1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "tpu"}, 'device: must be "cpu" or "gpu", got "tpu"'),
        ({"seed": -1}, "seed: must be from 0 to 4294967295, got -1"),
        ({"chains": 10}, "chains: must be at least 1000, got 10"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        selftest.selftest(**arguments)  # type: ignore[arg-type]


@pytest.mark.skipif(gpu_is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(app, ["selftest", "--device", "gpu"])
    assert result.exit_code == 2
    assert "there is no GPU here" in result.output


def test_selftest_needs_numpy_and_scipy_only() -> None:
    allowed = {"numpy", "scipy", "cupy", "cupyx"} | sys.stdlib_module_names
    package = Path(selftest.__file__).parents[1]
    seen, waiting = set(), ["selftest.selftest"]
    while waiting:
        name = waiting.pop()
        path = package.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in seen or not file.exists():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            for module in modules:
                root, _, rest = module.partition(".")
                if root == "rayfbnn":
                    waiting += [rest, rest.rpartition(".")[0]] if rest else []
                else:
                    assert root in allowed, f"{file.name} imports {module}"
    assert {"model.posterior", "mcmc.schedule", "selftest.pivots"} <= seen
