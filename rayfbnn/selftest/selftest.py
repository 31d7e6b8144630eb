"""The verb `selftest`: tests of this machine and its kernels before their results are trusted.

The tests need only NumPy and SciPy (and CuPy for a GPU). docs/correctness.md says which faults each test can
detect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np

from rayfbnn.arrays import device_namespace, gpu_is_available
from rayfbnn.errors import ConfigError
from rayfbnn.selftest.calculations import Judgement, agreement_of, gradient_of, known_answers, reversal_of
from rayfbnn.selftest.exact_draws import TOY_OPERATIONS, joint, toy_target
from rayfbnn.selftest.problems import DTYPES, PROBLEMS
from rayfbnn.streams import MAX_SEED


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    test, subject   name of the test, and the object under test
    found, allowed  the value, and the allowed values
    """

    test: str
    subject: str
    found: str
    allowed: str
    ok: bool
    seconds: float


def selftest(
    *,
    device: str = "cpu",
    seed: int = 1,
    chains: int = 10_000,
    report: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Test this machine before its results are trusted: gradients, reversal, and exact draws that stay exact.

    Each statistical test fails for a correct sampler with at most 1 in 100,000 seeds.

    Parameters
    ----------
    device
        "cpu" or "gpu".
    seed
        Seed of the random numbers; another seed is another test.
    chains
        Number of chains in the statistical tests; more chains detect smaller faults. A test in doubt is
        repeated with four times as many.
    report
        Called with each finding as soon as it is known.

    Returns
    -------
    list of Finding
        The result of each test.
    """
    if device not in ("cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if device == "gpu" and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')
    if seed % 1 != 0 or not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed: must be from 0 to {MAX_SEED}, got {seed}")
    if chains % 1 != 0 or chains < 1000:
        raise ConfigError(f"chains: must be at least 1000, got {chains}")
    xp = device_namespace(device)
    findings = []
    for test, subject, judge in _tests(xp, seed, chains):
        started_at = time.monotonic()
        with np.errstate(all="ignore"):  # faults appear in the table, without warnings above it
            value, allowed, ok = judge()
        finding = Finding(test, subject, value, allowed, ok, time.monotonic() - started_at)
        report(finding)
        findings.append(finding)
    return findings


def _tests(xp: ModuleType, seed: int, chains: int) -> Iterator[tuple[str, str, Callable[[], Judgement]]]:
    yield "random numbers", "Philox4x32-10", partial(known_answers, xp)
    for name in PROBLEMS:
        yield "gradient", name, partial(gradient_of, name, xp, seed)
    for name in PROBLEMS:
        yield "agreement", name, partial(agreement_of, name, xp, seed)
    for name in PROBLEMS:
        yield "reversal", name, partial(reversal_of, name, xp, seed)
    for dtype in DTYPES:
        for name in TOY_OPERATIONS:
            yield "toy target", f"{name}, {dtype}", partial(toy_target, name, xp, seed, chains, dtype)
    for dtype in DTYPES:
        for name in PROBLEMS:
            yield "joint", f"{name}, {dtype}", partial(joint, name, xp, seed, chains, dtype)
