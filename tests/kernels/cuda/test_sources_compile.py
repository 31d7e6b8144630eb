"""The CUDA sources compile for current devices, for every network that they are meant for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import register_table
from rayfbnn.kernels.cuda import streams as cuda_streams
from rayfbnn.kernels.cuda.generate import reduction_constants, regression_constants, source_of
from rayfbnn.kernels.cuda.launch_plan import (
    LaunchPlan,
    block_bytes,
    launch_plan,
    launch_plan_of_regression,
    wide_plan,
)
from rayfbnn.kernels.cuda.reducing import reduction_plan
from rayfbnn.kernels.network_plan import NetworkPlan, hazard_starts, plan_of, plan_of_predictions
from rayfbnn.model.integrated import marginal
from rayfbnn.model.sampled import SampledPosterior
from tests.support.kernels import reductions
from tests.support.kernels.networks import H100_SHARED_BYTES, small
from tests.support.marks import long_but
from tests.support.model import data_models
from tests.support.model.marginals import BOTH, PRECISIONS, REAL, conditional
from tests.support.problems import network, problem

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")


@cache
def disassembler() -> Path | None:
    """The program of the package nvidia-cuda-nvdisasm, or None if that is not installed."""
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else package.submodule_search_locations or []
    return next((path for folder in folders for path in Path(folder).glob("*/bin/nvdisasm")), None)


def innermost_loops(code: bytes) -> list[list[str]]:
    """The instructions of each loop that has no other loop inside, in the order of the code."""
    instructions, places = _instructions(code)
    loops = [
        (places[branch[1]], end)
        for end, text in enumerate(instructions)
        if (branch := _BRANCH.search(text)) and places.get(branch[1], end) < end
    ]
    return [
        instructions[begin : end + 1]
        for begin, end in loops
        if not any(begin <= other < last <= end for other, last in loops if (other, last) != (begin, end))
    ]


def _instructions(code: bytes) -> tuple[list[str], dict[str, int]]:
    """All instructions, and the number of the instruction that each label stands before."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [str(disassembler()), "-c", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions: list[str] = []
    places: dict[str, int] = {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            places[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
    return instructions, places


pytestmark = pytest.mark.skipif(
    register_table.library() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc (in the dev extra)"
)
ARCHITECTURES = ["sm_80", "sm_90"]
# What compiles to PTX is machine code in the long tests, and for the standard networks in `make registers`.
DTYPES = ["float32", "float64"]
ACTIVATIONS = ["identity", "tanh", "sigmoid", "relu", "softplus", "softplus0", "sin"]


def planned(target: Any) -> NetworkPlan:
    """The plan of a target that the kernels cover."""
    plan = plan_of(target)
    assert isinstance(plan, NetworkPlan)
    return plan


def check_compiles(architecture: str, source: str) -> str:
    """Check that a source is compiled to machine code, or to PTX, and return the compiler's log."""
    code, log = register_table.compile_for(architecture, source)
    assert b".entry" in code if architecture.startswith("compute_") else code[:4] == b"\x7fELF", log
    return log


def compile_network(
    target: SampledPosterior,
    architecture: str,
    *,
    is_weighted: bool = False,
    plan: LaunchPlan | None = None,
    network_plan: NetworkPlan | None = None,
) -> str:
    """The compiler's log of a network's kernel; the plans are the network's own unless given."""
    network_plan = network_plan or planned(target)
    launch = plan or launch_plan(network_plan, dtype=target.dtype, max_shared_bytes=H100_SHARED_BYTES)
    assert isinstance(launch, LaunchPlan)
    source = source_of(network_plan, launch, dtype=target.dtype, is_weighted=is_weighted)
    return check_compiles(architecture, source)


def plan_of_kernel(kernel: str, network_plan: NetworkPlan, target: SampledPosterior) -> LaunchPlan:
    """The division of work of a kernel of posteriors by its name."""
    shared_bytes = block_bytes(network_plan, 32, 64, target.inputs.itemsize)
    plans = {"warp": LaunchPlan("warp", threads=128, tile=1, shared_bytes=0), "wide": wide_plan}
    return plans.get(kernel, LaunchPlan("block", threads=64, tile=32, shared_bytes=shared_bytes))


QUICK_MODELS = [
    ("gaussian", "compute_80", "float32"),
    ("t by target", "compute_90", "float64"),
    ("binary", "compute_80", "float64"),
    ("class", "compute_90", "float32"),
]


@pytest.mark.parametrize(
    "model, architecture, dtype",
    QUICK_MODELS + long_but((), ["gaussian", "t by target", "binary", "class"], ARCHITECTURES, DTYPES),
)
def test_every_data_model_compiles(model: str, architecture: str, dtype: str) -> None:
    compile_network(problem(model, dtype=dtype), architecture, is_weighted=model == "class")


ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}
QUICK = [
    ("gaussian", "compute_80", "float32", False),
    ("t", "compute_90", "float64", True),
    ("binary", "compute_80", "float64", True),
    ("class", "compute_90", "float32", False),
]


@pytest.mark.parametrize("kernel", ["warp", "block", "block without precisions", "wide"])
@pytest.mark.parametrize(
    "model, architecture, dtype, is_weighted",
    QUICK + long_but((), ["gaussian", "t", "binary", "class"], ARCHITECTURES, DTYPES, [False, True]),
)
def test_every_kernel_compiles_with_every_data_model(
    model: str, architecture: str, dtype: str, is_weighted: bool, kernel: str
) -> None:
    outputs = 3 if model == "class" else 2
    spec = network(ROBOT_ARM, outputs=outputs, units=(4,), activations=("tanh",))
    target = problem(model, spec=spec, dtype=dtype)
    is_integrated = kernel == "block without precisions"
    network_plan = planned(marginal(target, PRECISIONS) if is_integrated else target)
    assert bool(network_plan.integrated) == is_integrated
    plan = plan_of_kernel(kernel, network_plan, target)
    compile_network(target, architecture, is_weighted=is_weighted, plan=plan, network_plan=network_plan)


@pytest.mark.parametrize(
    "name, kernel",
    long_but(
        {("count", "warp"), ("count, dispersion", "block"), ("heteroscedastic, floor", "wide")},
        ["count", "count, dispersion", "constant hazard", "heteroscedastic, floor"],
        ["warp", "block", "wide"],
    ),
)
def test_counts_times_and_noise_as_an_output_compile(name: str, kernel: str) -> None:
    target = data_models.problem(name, dtype="float32")
    plan = plan_of_kernel(kernel, planned(target), target)
    compile_network(target, "sm_90", is_weighted=name == "count", plan=plan)


QUICK_SUMS = [
    ("gaussian", "compute_90", "float32", True),
    ("t", "compute_80", "float64", False),
    ("class", "compute_90", "float32", False),
    ("heteroscedastic", "compute_80", "float64", True),
    ("count", "compute_90", "float32", True),
    ("count", "compute_80", "float64", False),
    ("survival", "compute_90", "float32", False),
    ("piecewise", "compute_80", "float32", True),
    ("piecewise", "compute_90", "float64", False),
]


@pytest.mark.parametrize(
    "model, architecture, dtype, is_fused",
    QUICK_SUMS + long_but((), reductions.MODELS, ARCHITECTURES, DTYPES, [False, True]),
)
def test_sums_over_draws_compile(model: str, architecture: str, dtype: str, is_fused: bool) -> None:
    posterior = reductions.Problem(model, dtype=dtype).posterior
    network_plan = plan_of_predictions(posterior)
    assert isinstance(network_plan, NetworkPlan)
    plan = reduction_plan(network_plan, dtype, is_fused=is_fused)
    starts = hazard_starts(posterior)
    constants = reduction_constants(n_guesses=5, starts=starts, is_fused=is_fused)
    for is_weighted in (False, True):
        source = source_of(network_plan, plan, dtype=dtype, is_weighted=is_weighted, more_constants=constants)
        check_compiles(architecture, source)


# One system and two, noise that is the same in all cases and not.
QUICK_REGRESSIONS = [
    ("gaussian", "compute_80", "float64"),
    ("gaussian by target", "compute_90", "float32"),
    ("t", "compute_90", "float64"),
    ("t by target", "compute_80", "float32"),
    ("binary", "compute_90", "float32"),
]


@pytest.mark.parametrize("kernel, n_cases", [("marginal", 19), ("marginal dual", 5)])
@pytest.mark.parametrize(
    "model, architecture, dtype",
    QUICK_REGRESSIONS + long_but((), [*REAL, "binary"], ARCHITECTURES, DTYPES),
)
def test_regressions_of_every_data_model_compile(
    model: str, architecture: str, dtype: str, kernel: str, n_cases: int
) -> None:
    spec = network(ROBOT_ARM, units=(8,), activations=("tanh",))
    target = problem(model, spec=spec, n_cases=n_cases, dtype=dtype)
    _, given = conditional(target, BOTH, "compiled", 1)
    source, plan = source_of_regression(target, is_uniform=given.regression.is_uniform)
    assert plan.kernel == kernel
    check_compiles(architecture, source)


@pytest.mark.parametrize("architecture, dtype", [("sm_80", "float64"), ("sm_90", "float32")])
def test_what_is_between_the_products_compiles_without_outputs(architecture: str, dtype: str) -> None:
    target = problem(spec=network(ROBOT_ARM, units=(8,), activations=("tanh",)), dtype=dtype)
    network_plan = planned(marginal(target, BOTH))
    assert network_plan.units[-1] == 0
    compile_network(target, architecture, plan=wide_plan, network_plan=network_plan)


@pytest.mark.parametrize("kernel", ["warp", pytest.param("wide", marks=pytest.mark.long)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_compiles(activation: str, kernel: str) -> None:
    target = problem(spec=small((4,), activation=activation), dtype="float32")
    compile_network(target, "sm_90", plan=wide_plan if kernel == "wide" else None)


@pytest.mark.parametrize("units, inputs, outputs", [((16,), 2, 2), ((30,), 1, 1), ((50, 50), 13, 1)])
def test_the_timed_networks_stay_in_registers(units: tuple[int, ...], inputs: int, outputs: int) -> None:
    log = compile_network(
        problem(spec=small(units, inputs=inputs, outputs=outputs), dtype="float32"), "sm_90"
    )
    assert 0 <= spilled(log) <= 64  # bytes per thread; a kernel short of registers takes hundreds


@pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("launched", ["advance", "hybrid"])
def test_the_loop_over_the_cases_of_the_robot_arm_is_short(launched: str) -> None:
    """One pass of the loop is one case for each thread of a warp, and takes nearly all of the time."""
    network_plan = planned(problem(spec=small((16,)), dtype="float32"))
    plan = launch_plan(network_plan, dtype="float32", max_shared_bytes=H100_SHARED_BYTES)
    assert isinstance(plan, LaunchPlan) and plan.kernel == "warp"
    source = source_of(network_plan, plan, dtype="float32", is_weighted=False, launched=launched)
    loops = innermost_loops(register_table.compile_for("sm_90", source)[0])
    # The loop for forces has as many exponentials as units, and no comparisons, which accurate ones need.
    with_exponentials = [loop for loop in loops if sum("MUFU.EX2" in line for line in loop) == 16]
    forces = [loop for loop in with_exponentials if not any("FSETP" in line for line in loop)]
    assert len(forces) == 1 and len(with_exponentials) == 2
    assert 16 * 18 < len(forces[0]) <= 360  # 16 units take at least 16 * 18 multiplications and additions


@pytest.mark.parametrize(
    "units, inputs, outputs, kernel, min_blocks",
    [
        ((16,), 2, 2, "warp", 3),
        ((30,), 1, 1, "warp", 2),  # 175 words, which spill in the registers of three blocks
        ((50, 50), 13, 1, "block", 2),
        ((150,), 10, 1, "block", 2),
        ((200,), 10, 1, "block", 1),  # 117 KiB of shared memory
    ],
)
def test_registers_allow_the_blocks_that_shared_memory_allows(
    units: tuple[int, ...], inputs: int, outputs: int, kernel: str, min_blocks: int
) -> None:
    target = problem(spec=small(units, inputs=inputs, outputs=outputs), dtype="float32")
    plan = launch_plan(planned(target), dtype="float32", max_shared_bytes=H100_SHARED_BYTES)
    assert isinstance(plan, LaunchPlan)
    assert (plan.kernel, plan.min_blocks) == (kernel, min_blocks)
    assert f"constexpr int MIN_BLOCKS = {min_blocks};" in source_of(
        planned(target), plan, dtype="float32", is_weighted=False
    )


def spilled(log: str) -> int:
    """Bytes per thread that a kernel spills from registers, or -1 if the log does not say."""
    lines = [line.split("bytes spill stores")[0] for line in log.splitlines() if "bytes spill stores" in line]
    return max((int(line.split(",")[-1]) for line in lines), default=-1)


QUICK_ROBOT_ARMS = {("sm_80", "float32", True), ("sm_90", "float64", False)}  # `make registers` has more


@pytest.mark.parametrize(
    "inputs, outputs, units, n_cases", [(2, 2, 16, 200), (1, 1, 100, 20)], ids=["robot arm", "dual"]
)
@pytest.mark.parametrize(
    "architecture, dtype, is_uniform", long_but(QUICK_ROBOT_ARMS, ARCHITECTURES, DTYPES, [True, False])
)
def test_networks_without_their_outputs_stay_in_registers(
    architecture: str, dtype: str, is_uniform: bool, inputs: int, outputs: int, units: int, n_cases: int
) -> None:
    spec = network(ROBOT_ARM, inputs=inputs, outputs=outputs, units=(units,), activations=("tanh",))
    compile_regression(problem(spec=spec, n_cases=n_cases, dtype=dtype), architecture, is_uniform=is_uniform)


def source_of_regression(target: SampledPosterior, *, is_uniform: bool) -> tuple[str, LaunchPlan]:
    network_plan = planned(marginal(target, BOTH))
    assert network_plan.regression is not None
    n_cases = target.n_cases
    plan = launch_plan_of_regression(
        network_plan,
        dtype=target.dtype,
        n_cases=n_cases,
        is_uniform=is_uniform,
        max_shared_bytes=H100_SHARED_BYTES,
    )
    assert isinstance(plan, LaunchPlan)
    constants = regression_constants(network_plan.regression, n_cases=n_cases, is_uniform=is_uniform)
    source = source_of(network_plan, plan, dtype=target.dtype, is_weighted=False, more_constants=constants)
    return source, plan


def compile_regression(target: SampledPosterior, architecture: str, *, is_uniform: bool) -> None:
    source, plan = source_of_regression(target, is_uniform=is_uniform)
    assert 0 <= spilled(check_compiles(architecture, source)) <= 64
    too_little = source.replace(
        f"SHARED_BYTES = {plan.shared_bytes}", f"SHARED_BYTES = {plan.shared_bytes - 64}"
    )
    code, log = register_table.compile_for(architecture, too_little)
    assert code == b"" and "less shared memory" in log


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", pytest.param("sm_100", marks=pytest.mark.long)])
def test_the_random_numbers_compile(architecture: str) -> None:
    check_compiles(architecture, cuda_streams.SOURCE)


def test_an_error_in_a_source_is_seen() -> None:
    code, log = register_table.compile_for("sm_90", "__global__ void kernel() { undeclared(); }")
    assert code == b"" and "undeclared" in log


def test_a_network_that_asks_for_too_little_shared_memory_does_not_compile() -> None:
    network_plan = planned(problem(spec=small((50, 50)), dtype="float32"))
    plan = LaunchPlan("block", threads=256, tile=64, shared_bytes=16_384)
    code, log = register_table.compile_for(
        "sm_90", source_of(network_plan, plan, dtype="float32", is_weighted=False)
    )
    assert code == b"" and "less shared memory" in log
