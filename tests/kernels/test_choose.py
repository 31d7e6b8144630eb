"""The choice of the code for a posterior's trajectories, its name, and that a recorded choice is kept."""

from __future__ import annotations

import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from socket import gethostname

import numpy as np
import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.kernels.cpu import compiled_module as cpu
from rayfbnn.kernels.cuda.advance import GRAPHS, LAUNCHES, CudaAdvance
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.architecture import ModelSpec
from tests.support.kernels.backends import on_cpu
from tests.support.kernels.networks import Start, end_of, small
from tests.support.problems import network, problem
from tests.support.targets import banana, start

needs_kernels = pytest.mark.skipif(not cpu.instruction_sets(), reason="installed without a C++ compiler")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choose.VARIABLE, raising=False)


@needs_kernels
def test_a_covered_network_is_run_by_the_best_instruction_set() -> None:
    target = problem()
    advance, name = choose.advance_for(target)
    assert name == f"compiled, {cpu.instruction_sets()[0]}"
    start = Start.of(target)
    for values, others in zip(start.run(advance, target), start.run(on_cpu(target), target), strict=True):
        assert np.array_equal(values, others)


def test_what_is_not_covered_is_run_by_array_code_and_says_why() -> None:
    spec = network(units=(4, 3), activations=("tanh", "softmax"))
    advance, name = choose.advance_for(problem(spec=spec))
    assert advance is leapfrog.advance
    assert name == "plain NumPy (softmax layers)"


def test_without_compiled_kernels_array_code_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_cpu", None)
    monkeypatch.setattr(cpu, "why_none", "installed without a C++ compiler")
    advance, name = choose.advance_for(problem())
    assert advance is leapfrog.advance
    assert name == "plain NumPy (no compiled kernels: installed without a C++ compiler)"


@pytest.mark.parametrize("reason", ["x" * 500, "/home/jürgen/\x1b/_cpu.so: undefined symbol\n" * 9, "é"])
def test_the_name_of_array_code_is_one_that_a_store_takes(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_cpu", None)
    monkeypatch.setattr(cpu, "why_none", reason)
    _, name = choose.advance_for(problem())
    assert re.fullmatch(r"plain NumPy \([ -~]{1,188}\)", name)
    assert choose.is_available(name)


def test_why_a_compiled_module_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "rayfbnn_broken"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / f"broken{EXTENSION_SUFFIXES[0]}").write_text("no machine code")
    (package / "foreign.cpython-27.so").touch()
    (package / "missing.py").write_text("import rayfbnn_not_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cpu.load("rayfbnn_broken.none") == (None, "installed without a C++ compiler")
    reasons = [cpu.load(f"rayfbnn_broken.{name}")[1] for name in ("broken", "foreign", "missing")]
    assert reasons[0].startswith("rayfbnn_broken.broken does not load: ")
    assert reasons[1].startswith("foreign.cpython-27.so is not of this Python, ")
    assert "rayfbnn_not_installed" in reasons[2]


def test_an_unknown_name_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = " or ".join(("plain", "launches", *cpu.instruction_sets()))
    for wrong in ("avx2", "AVX-1024", "Plain"):
        monkeypatch.setenv(choose.VARIABLE, wrong)
        with pytest.raises(
            ConfigError, match=f"RAYFBNN_KERNELS: must be {choices} on {gethostname()}, got {wrong}"
        ):
            choose.advance_for(problem())
        with pytest.raises(ConfigError, match="RAYFBNN_KERNELS"):
            choose.is_available(f"compiled, {(*cpu.instruction_sets(), 'AVX2')[0]}")
    monkeypatch.setenv(choose.VARIABLE, "")
    assert choose.advance_for(problem())[1]


def test_array_code_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choose.VARIABLE, "plain")
    advance, name = choose.advance_for(problem())
    assert advance is leapfrog.advance
    assert name == "plain NumPy (RAYFBNN_KERNELS is plain)"


@needs_kernels
def test_an_instruction_set_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in cpu.instruction_sets():
        monkeypatch.setenv(choose.VARIABLE, wanted)
        assert choose.advance_for(problem())[1] == f"compiled, {wanted}"


def test_the_name_is_the_same_before_there_are_data() -> None:
    for activation in ("tanh", "softmax"):
        spec = network(units=(4, 3), activations=(activation, "tanh"))
        target = problem("t", spec=spec)
        name = choose.name_for(spec, target.model, n_targets=2, device="cpu")
        assert name == choose.advance_for(target)[1]
    survival = choose.name_for(spec, ModelSpec("survival", times=(1.0, 2.0)), n_targets=1, device="cpu")
    assert survival == "plain NumPy (survival targets)"


def test_graphs_are_of_devices_and_not_where_a_run_was_begun_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = small((100,))
    target = problem(spec=spec)

    def chosen(recorded: str | None = None) -> tuple[str, bool]:
        advance, name = choose.advance_for(target, device="gpu", recorded=recorded, max_shared_bytes=0)
        assert isinstance(advance, CudaAdvance)
        return name, advance.recordings is not None

    with_graphs, without, on_host = chosen(), chosen(LAUNCHES), choose.advance_for(target)[1]
    assert not without[1] and "graphs" not in without[0]
    assert with_graphs[1] and "full gradients as CUDA graphs" in with_graphs[0]
    assert choose.name_for(spec, target.model, n_targets=2, device="gpu") == GRAPHS
    monkeypatch.setenv(choose.VARIABLE, "launches")
    assert chosen() == without and chosen(GRAPHS) == with_graphs
    assert choose.name_for(spec, target.model, n_targets=2, device="gpu") == LAUNCHES
    assert choose.advance_for(target)[1] == on_host


def test_array_code_that_was_forced_on_a_device_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    target = problem()
    monkeypatch.setenv(choose.VARIABLE, "plain")
    _, begun = choose.advance_for(target, device="gpu")
    monkeypatch.delenv(choose.VARIABLE)
    assert choose.advance_for(target, device="gpu", recorded=begun) == (leapfrog.advance, begun)
    assert choose.advance_for(target, device="gpu", max_shared_bytes=100_000)[0] is not leapfrog.advance
    monkeypatch.setenv(choose.VARIABLE, "plain")
    assert choose.advance_for(target, device="gpu", recorded=GRAPHS) == (leapfrog.advance, begun)


@needs_kernels
def test_what_a_run_began_with_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    target = problem()
    for recorded in (
        choose.ARRAY_CODE["cpu"],
        *(f"compiled, {each}" for each in cpu.instruction_sets()),
    ):
        assert choose.advance_for(target, recorded=recorded)[1] == recorded
    best = f"compiled, {cpu.instruction_sets()[0]}"
    assert choose.advance_for(target, recorded="compiled, of another machine")[1] == best
    monkeypatch.setenv(choose.VARIABLE, "plain")
    assert choose.advance_for(target, recorded=best)[1].startswith(choose.ARRAY_CODE["cpu"])


def test_targets_that_are_no_posterior_are_run_by_array_code() -> None:
    target = banana()
    advance, _ = choose.advance_for(problem())
    here, order = start(3, target)
    expected = end_of(leapfrog.advance, target, here, n_steps=4, order=order)
    for values, others in zip(end_of(advance, target, here, n_steps=4, order=order), expected, strict=True):
        assert np.array_equal(values, others)
