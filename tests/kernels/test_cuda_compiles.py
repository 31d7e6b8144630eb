"""The CUDA sources compile for the devices of today, for every network they are meant for."""

from __future__ import annotations

import pytest

from rayfbnn.kernels.cuda import chip as cuda
from rayfbnn.kernels.cuda import chip_marginal as cuda_marginal
from rayfbnn.kernels.cuda import streams as cuda_streams
from rayfbnn.kernels.marginal_plan import program_of
from rayfbnn.kernels.plan import Program
from rayfbnn.model.marginal.targets import marginal
from rayfbnn.model.posterior import Posterior
from tests.support.kernels import nvrtc
from tests.support.kernels.networks import H100_SHARED_BYTES, small
from tests.support.marks import long_but
from tests.support.model.marginals import BOTH, PRECISIONS, REAL, conditional
from tests.support.problems import network, problem

pytestmark = pytest.mark.skipif(
    nvrtc.library() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc (in the dev extra)"
)
ARCHITECTURES = ["sm_80", "sm_90"]
DTYPES = ["float32", "float64"]
ACTIVATIONS = ["identity", "tanh", "sigmoid", "relu", "softplus", "softplus0", "sin"]


def compile_network(
    target: Posterior,
    architecture: str,
    *,
    is_weighted: bool = False,
    plan: cuda.Plan | None = None,
    program: Program | str | None = None,
) -> str:
    """The compiler's log of a network's kernel; plan and program are the network's own unless given."""
    program = Program.of(target) if program is None else program
    assert isinstance(program, Program)
    found = plan or cuda.plan_of(program, dtype=target.dtype, max_shared_bytes=H100_SHARED_BYTES)
    assert isinstance(found, cuda.Plan)
    source = cuda.source_of(program, found, dtype=target.dtype, is_weighted=is_weighted)
    code, log = nvrtc.compile_for(architecture, source)
    assert code[:4] == b"\x7fELF", log
    return log


@pytest.mark.parametrize("architecture, dtype", [("sm_80", "float32"), ("sm_90", "float64")])
@pytest.mark.parametrize("model", ["gaussian", "t by target", "binary", "class"])
def test_every_data_model_compiles(model: str, architecture: str, dtype: str) -> None:
    compile_network(problem(model, dtype=dtype), architecture, is_weighted=model == "class")


ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}
QUICK = {
    ("gaussian", "sm_80", "float32", False),
    ("t", "sm_90", "float64", True),
    ("binary", "sm_80", "float64", True),
    ("class", "sm_90", "float32", False),
}


@pytest.mark.parametrize("kernel", ["warp", "block", "block without precisions", "wide"])
@pytest.mark.parametrize(
    "model, architecture, dtype, is_weighted",
    long_but(QUICK, ["gaussian", "t", "binary", "class"], ARCHITECTURES, DTYPES, [False, True]),
)
def test_every_kernel_compiles_with_every_data_model(
    model: str, architecture: str, dtype: str, is_weighted: bool, kernel: str
) -> None:
    outputs = 3 if model == "class" else 2
    spec = network(ROBOT_ARM, outputs=outputs, units=(4,), activations=("tanh",))
    target = problem(model, spec=spec, dtype=dtype)
    is_integrated = kernel == "block without precisions"
    program = program_of(marginal(target, PRECISIONS)) if is_integrated else Program.of(target)
    assert isinstance(program, Program) and bool(program.integrated) == is_integrated
    shared_bytes = cuda.block_bytes(program, 32, 64, target.inputs.itemsize)
    plans = {"warp": cuda.Plan("warp", threads=128, tile=1, shared_bytes=0), "wide": cuda.wide_plan}
    plan = plans.get(kernel, cuda.Plan("block", threads=64, tile=32, shared_bytes=shared_bytes))
    compile_network(target, architecture, is_weighted=is_weighted, plan=plan, program=program)


# One system and two, noise that is the same in all cases and not.
QUICK_REGRESSIONS = {
    ("gaussian", "sm_80", "float64"),
    ("gaussian by target", "sm_90", "float32"),
    ("t", "sm_90", "float64"),
    ("t by target", "sm_80", "float32"),
    ("binary", "sm_90", "float32"),
}


@pytest.mark.parametrize("kernel, n_cases", [("marginal", 19), ("marginal dual", 5)])
@pytest.mark.parametrize(
    "model, architecture, dtype", long_but(QUICK_REGRESSIONS, [*REAL, "binary"], ARCHITECTURES, DTYPES)
)
def test_regressions_of_every_data_model_compile(
    model: str, architecture: str, dtype: str, kernel: str, n_cases: int
) -> None:
    spec = network(ROBOT_ARM, units=(8,), activations=("tanh",))
    target = problem(model, spec=spec, n_cases=n_cases, dtype=dtype)
    _, given = conditional(target, BOTH, "compiled", 1)
    source, plan = source_of_regression(target, is_uniform=given.regression.is_uniform)
    assert plan.kernel == kernel
    code, log = nvrtc.compile_for(architecture, source)
    assert code[:4] == b"\x7fELF", log


@pytest.mark.parametrize("architecture, dtype", [("sm_80", "float64"), ("sm_90", "float32")])
def test_what_is_between_the_products_compiles_without_outputs(architecture: str, dtype: str) -> None:
    target = problem(spec=network(ROBOT_ARM, units=(8,), activations=("tanh",)), dtype=dtype)
    program = program_of(marginal(target, BOTH))
    assert isinstance(program, Program) and program.units[-1] == 0
    compile_network(target, architecture, plan=cuda.wide_plan, program=program)


@pytest.mark.parametrize("kernel", ["warp", "wide"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_compiles(activation: str, kernel: str) -> None:
    target = problem(spec=small((4,), activation=activation), dtype="float32")
    compile_network(target, "sm_90", plan=cuda.wide_plan if kernel == "wide" else None)


@pytest.mark.parametrize("units, inputs, outputs", [((16,), 2, 2), ((50, 50), 13, 1)])
def test_the_timed_networks_stay_in_registers(units: tuple[int, ...], inputs: int, outputs: int) -> None:
    log = compile_network(
        problem(spec=small(units, inputs=inputs, outputs=outputs), dtype="float32"), "sm_90"
    )
    assert 0 <= spilled(log) <= 64  # bytes a thread; a kernel without room to spare takes hundreds


def spilled(log: str) -> int:
    """Bytes a thread that a kernel stores away from registers, -1 if the log does not say."""
    lines = [line.split("bytes spill stores")[0] for line in log.splitlines() if "bytes spill stores" in line]
    return max((int(line.split(",")[-1]) for line in lines), default=-1)


@pytest.mark.parametrize("is_uniform", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_robot_arm_without_its_outputs_stays_in_registers(
    architecture: str, dtype: str, is_uniform: bool
) -> None:
    spec = network(ROBOT_ARM, inputs=2, units=(16,), activations=("tanh",))
    compile_regression(problem(spec=spec, n_cases=200, dtype=dtype), architecture, is_uniform=is_uniform)


@pytest.mark.parametrize("dtype, is_uniform", [("float32", True), ("float64", False)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_matrices_of_the_cases_stay_in_registers(architecture: str, dtype: str, is_uniform: bool) -> None:
    spec = network(ROBOT_ARM, inputs=1, outputs=1, units=(100,), activations=("tanh",))
    compile_regression(problem(spec=spec, n_cases=20, dtype=dtype), architecture, is_uniform=is_uniform)


def source_of_regression(target: Posterior, *, is_uniform: bool) -> tuple[str, cuda.Plan]:
    program = program_of(marginal(target, BOTH))
    assert not isinstance(program, str) and program.regression is not None
    n_cases = target.n_cases
    plan = cuda_marginal.plan_of(
        program,
        dtype=target.dtype,
        n_cases=n_cases,
        is_uniform=is_uniform,
        max_shared_bytes=H100_SHARED_BYTES,
    )
    assert isinstance(plan, cuda.Plan)
    constants = cuda_marginal.constants_of(program.regression, n_cases=n_cases, is_uniform=is_uniform)
    source = cuda.source_of(program, plan, dtype=target.dtype, is_weighted=False, constants_besides=constants)
    return source, plan


def compile_regression(target: Posterior, architecture: str, *, is_uniform: bool) -> None:
    source, plan = source_of_regression(target, is_uniform=is_uniform)
    code, log = nvrtc.compile_for(architecture, source)
    assert code[:4] == b"\x7fELF", log
    assert 0 <= spilled(log) <= 64
    too_little = source.replace(
        f"SHARED_BYTES = {plan.shared_bytes}", f"SHARED_BYTES = {plan.shared_bytes - 64}"
    )
    code, log = nvrtc.compile_for(architecture, too_little)
    assert code == b"" and "less shared memory" in log


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_random_numbers_compile(architecture: str) -> None:
    code, log = nvrtc.compile_for(architecture, cuda_streams.SOURCE)
    assert code[:4] == b"\x7fELF", log


def test_an_error_in_a_source_is_seen() -> None:
    code, log = nvrtc.compile_for("sm_90", "__global__ void kernel() { undeclared(); }")
    assert code == b"" and "undeclared" in log


def test_a_network_that_asks_for_too_little_shared_memory_does_not_compile() -> None:
    program = Program.of(problem(spec=small((50, 50)), dtype="float32"))
    assert isinstance(program, Program)
    plan = cuda.Plan("block", threads=256, tile=64, shared_bytes=16_384)
    code, log = nvrtc.compile_for("sm_90", cuda.source_of(program, plan, dtype="float32", is_weighted=False))
    assert code == b"" and "less shared memory" in log
