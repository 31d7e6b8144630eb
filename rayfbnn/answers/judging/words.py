"""Advice on a run that went wrong, and the words that sentences on runs share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import (
    AUTO,
    Operation,
    Tuning,
    automatic,
    gradient_evaluations,
    unrolled,
    with_inner,
)
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.numerals import compared
from rayfbnn.spec import RunSpec
from rayfbnn.store.rounds import word_of_run

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.draws.view import Draws
    from rayfbnn.store.store import Store


# Above this R-hat, chains may sit in different modes. R-hat then need not fall as the draws increase.
RHAT_IN_REACH = 1.1
_VAGUE = 1.0  # a smaller alpha lets a sigma wander over orders of magnitude
_MOST_ITERATIONS = 10**9
_WIDE = 64  # units of a layer; wider layers were not measured (docs/decisions/0017)


def iterations_that_would_do(
    row: pd.Series, spec: RunSpec, n_draws: int, *, max_rhat: float, min_ess: float
) -> float:
    """Return the length of the last phase that would make a quantity pass.

    It is NaN if the quantity passes already, or if no length can be predicted.

    The effective sample size grows in proportion to the draws. So does 1 / (R-hat**2 - 1), because R-hat**2
    is about 1 + C / ESS for C chains: Vats and Knudsen (2021), "Revisiting the Gelman-Rubin diagnostic",
    eq. 8. Neither holds if chains sit in different modes, so no length is predicted if R-hat is above 1.1.

    row : a quantity's rhat, ess_bulk and ess_tail
    n_draws : int     number of draws of each chain that `row` is computed from
    """
    rhat, ess = row["rhat"], min(row["ess_bulk"], row["ess_tail"])
    if not (math.isfinite(rhat) and ess > 0) or rhat > RHAT_IN_REACH:
        return math.nan
    factor = min_ess / ess
    if rhat > max_rhat:
        factor = max(factor, (rhat**2 - 1) / (max_rhat**2 - 1) if max_rhat > 1 else math.inf)
    elif factor <= 1:
        return math.nan
    needed = spec.phase[-1].iterations + n_draws * max(factor - 1, 0.0)
    return float(rounded_up(needed)) if needed < _MOST_ITERATIONS else math.nan


def rounded_up(value: float) -> int:
    """Round up to two significant digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def resume_advice(path: str, iterations: int) -> str:
    """Say how to make the run long enough."""
    return f"continue with: rayfbnn resume {path} --iterations {iterations}"


def stepsize_advice(spec: RunSpec) -> str:
    """Say what to do about trajectories that diverge, or chains that never move.

    Smaller stepsizes are advised only if they are not automatic.
    """
    last = len(spec.phase) - 1
    ways = [
        f"a smaller stepsize of {operation.op} (phase[{last}], currently {stepsize:g})"
        for operation, stepsize in _fixed(spec, "stepsize")
    ]
    if automatic(spec.phase[last].operations):
        if spec.ladder is not None:
            ways.append(f"a longer ladder.adaptation (currently {spec.ladder.adaptation})")
        else:
            tuning = max(one for one in spec.tuning_phases if automatic(spec.phase[one].operations))
            ways.append(
                "a longer tuning phase for the automatic settings"
                f" (phase[{tuning}].iterations, currently {spec.phase[tuning].iterations})"
            )
    if spec.dtype == "float32":
        ways.append('dtype = "float64"')
    return f"sample again with {_either([*ways, *_less_vague(spec)])}"


def mode_advice(spec: RunSpec) -> str:
    """Say what may help the chains to move between modes.

    Wider layers are advised because their chains agree more often (docs/decisions/0017). The lengths of a
    ladder's trajectories are not configured.
    """
    ways, units, last = [], [layer.units for layer in spec.network.hidden], len(spec.phase) - 1
    if units and max(units) < _WIDE:
        now, then = (" and ".join(map(str, numbers)) for numbers in (units, [2 * n for n in units]))
        ways.append(
            f"more hidden units ({then} instead of {now}; the same number of iterations takes about twice as"
            " long)"
        )
    if spec.ladder is None:
        ways += [
            f"longer trajectories (steps of {operation.op} in phase[{last}], currently {steps})"
            for operation, steps in _fixed(spec, "steps")
        ]
    return (
        f"no number of iterations can be promised while {word_of_run(spec)} stay in different modes; to help"
        f" them move between modes, sample again with {_either([*ways, *_less_vague(spec)])}"
    )


def chains_advice(spec: RunSpec, n_chains: int, n_needed: int | None) -> str:
    """Say how many chains, or ladders, make the average over them precise enough.

    n_needed  an even number, which stays even when it is rounded up
    """
    word = word_of_run(spec)
    enough = (
        f"more {word}" if n_needed is None else f"about {rounded_up(n_needed)} {word} instead of {n_chains}"
    )
    return (
        f"average over {enough}: sample again, or sample the additional {word} into a second store with"
        " another seed and pass both stores to predict"
    )


def _fixed(spec: RunSpec, setting: str) -> Iterator[tuple[Operation, Any]]:
    """Yield the different operations of the last phase that propose parameters and have a fixed setting."""
    for operation in dict.fromkeys(with_inner(spec.phase[-1].operations)):
        value = getattr(operation, setting, AUTO)
        if hasattr(operation, "stepsize") and operation.op != "rescale" and value != AUTO:
            yield operation, value


def _less_vague(spec: RunSpec) -> list[str]:
    vague = [group.name for group in spec.network.groups() if min(group.prior.alphas) < _VAGUE]
    return [f"less vague priors (alphas of 1 or more for {', '.join(vague)})"] if vague else []


def _either(ways: list[str]) -> str:
    return series(ways, "or") if ways else "other operations"


def series(words: Sequence[str], last: str = "and") -> str:
    """Return "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


_MOST_HEAT = 1.5
_STANDARD_ERRORS = 5


def heat_warning(store: Store) -> str:
    """Return a warning if the momentum of `sghmc` after the last blocks is far too large, or "".

    The momentum is standard normal in the posterior, so its mean square should be 1. Steps that are too long
    and gradients on batches make it larger. The result is "" if other operations draw a new momentum, or
    if the excess may be due to chance.
    """
    operations = unrolled(store.spec.phase[-1].operations) if store.kind == "mcmc" else ()
    keeps = any(isinstance(each, Sghmc) and each.integrator != "langevin" for each in operations)
    if not keeps or any(isinstance(each, Heatbath | Hybrid) for each in operations):
        return ""
    loaded = [store.load_state(batch) for batch in range(store.n_batches)]
    momenta = [each[0].momentum.ravel() for each in loaded if each is not None]
    if not momenta:
        return ""
    squares = np.concatenate(momenta).astype(np.float64) ** 2
    heat = squares.mean()
    if heat <= max(_MOST_HEAT, 1 + _STANDARD_ERRORS * math.sqrt(2 / len(squares))):
        return ""
    return (
        f"{store.path}: the mean square of the momentum of sghmc is {heat:.3g} but should be 1, so the draws"
        " are spread too widely; use a smaller stepsize, more friction or larger batches"
    )


def word_of_chains(runs: Sequence[Draws]) -> str:
    """Return what sentences call a chain of these draws: "ladder" if any run is of ladders, else "chain"."""
    return "ladder" if any(run.is_of_ladders for run in runs) else "chain"


_NAMED = 3
MOST_NUMBERED = 8  # chains


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def numbered(chains: Sequence[int], word: str = "chain") -> str:
    """Return "chain 3", "chains 3 and 7", or the first of many and how many more there are.

    word  "ladder" for chains that are ladders
    """
    words = [str(chain) for chain in chains[:MOST_NUMBERED]]
    if len(chains) > MOST_NUMBERED:
        return f"{word}s {', '.join(words)} and {len(chains) - MOST_NUMBERED} more"
    return f"{word}{'s' if len(words) > 1 else ''} {series(words)}"


def beyond(values: pd.Series, limit: float, form: str, limit_form: str = "g") -> tuple[str, str]:
    """Return the names of some quantities with their values, the first few, and the limit, as text."""
    texts, shown = compared(list(values), limit, form, limit_form)
    return listed([f"{name} {text}" for name, text in zip(values.index, texts, strict=True)]), shown


BESIDE = "; the same with equal weights is given beside it"  # where both are


def as_json(value: Any) -> Any:
    """Return records as dictionaries and tuples as lists, with None for numbers that are not finite."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_STEADY = 0.5  # standard deviations of a chain that its mean may change by, from half to half
_LADDERS = 8
# Gradients of a ladder in an iteration: 24 levels, whose trajectories have 16 steps at the hottest and 128 at
# the coldest.
_GRADIENTS = 24 * 50


def ladder_hint(run: Draws, rhat: float) -> str:
    """Return a sentence that offers a ladder, with a line to paste and its cost; "" if it would not help.

    A ladder is offered if the chains disagree in log likelihood while each is steady. More iterations would
    not join such chains.

    rhat  of the log likelihood
    """
    from rayfbnn.reduce.effective import MIN_DRAWS  # SciPy is slow to import, and most verbs need no verdict

    if run.kind != "mcmc" or run.early_phase is not None:
        return ""
    is_apart = math.isfinite(rhat) and rhat > RHAT_IN_REACH and run.n_draws >= 2 * MIN_DRAWS
    if not is_apart or not are_steady(run.stat("log_likelihood")):
        return ""
    left_out = ("phase", "method", "methods", "chains_per_batch", "iterations")
    keys = {key: value for key, value in run.spec.written().items() if key not in left_out}
    try:
        of_ladders = RunSpec.from_dict({**keys, "chains": _LADDERS, "ladder": {}}).resolved(run.spec.encoding)
    except ConfigError:  # ladders cannot sample this model
        return ""
    exchanged = sum(phase.iterations for phase in of_ladders.phase[-2:])
    tuning = Tuning(run.store.tuning.latest()[1])
    of_run = sum(
        one.iterations * gradient_evaluations(one.operations, tuning=tuning) for one in run.spec.phase
    )
    cost = _LADDERS * exchanged * _GRADIENTS / (run.spec.chains * max(1, of_run))
    factor = max(1.0, float(f"{cost:.1g}"))
    return (
        f"the chains are steady but disagree in log likelihood (R-hat {rhat:.2f}), so that more iterations"
        " will not join them; ladders show which of them count, and take about"
        f" {factor:,.0f} times the gradients of this run: rayfbnn sample run.toml ladder.zarr"
        f" --set ladder.levels=auto --set chains={_LADDERS} (with a configuration that has no [[phase]];"
        " docs/ladder.md)"
    )


def are_steady(log_likelihood: Array) -> bool:
    """Return True if all chains move, and the means of most change little from half to half.

    log_likelihood  (n_chains, n_draws)
    """
    first, second = np.array_split(log_likelihood, 2, axis=1)
    change = np.abs(second.mean(axis=1) - first.mean(axis=1))
    within = log_likelihood.std(axis=1, ddof=1)
    return bool((within > 0).all() and np.median(change / within) < _STEADY)
