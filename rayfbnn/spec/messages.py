"""Messages for wrong configurations: each names the key, its value, and the right kind of value."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rayfbnn.approximate.keys import one_of, right_values
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.mcmc.operations import OPERATIONS
from rayfbnn.model.architecture import ACTIVATIONS, LAYER_ACTIVATIONS, PRIOR_ACTIVATIONS
from rayfbnn.model.likelihood.registry import DATA_MODELS

OPERATION_NAMES = tuple(kind.op for kind in OPERATIONS)
MAX_WORD = 2**32 - 1  # seeds, chains and iterations are words of the random streams' key and counter

WEIGHTS_REFUSED = (
    "cases cannot be weighted: a weighted likelihood is not the posterior of any data set; repeat the rows"
    " that stand for several cases, or use a model whose noise differs between cases"
    ' (model.kind = "heteroscedastic")'
)
_WEIGHTS = ("sample_weight", "sample_weights", "weight", "weights")

_MOST_MESSAGES = 100
_MOST_ERRORS = 100_000

# The right kind of value for every key of a configuration; messages end with it.
RIGHT = {
    "seed": f"a whole number from 0 to {MAX_WORD}",
    "chains": "a whole number of at least 1, such as 16",
    "chains_per_batch": "a whole number of at least 1, such as 8",
    "draws_per_block": "a whole number of at least 1, such as 50",
    "dtype": '"float32" or "float64"',
    "device": '"cpu" or "gpu"',
    "temperature": "a number from 1e-6 to 1e6; 1 is the posterior itself",
    "data": "a table with train and targets",
    "train": 'the file of training cases, such as "train.csv"',
    "inputs": 'a list of at least one column name or pattern, such as ["x1", "x2"] or ["x*"]',
    "exclude": 'a list of column names or patterns, such as ["id", "date*"]',
    "targets": 'a list of at least one column name, such as ["y1"]',
    "censored": 'the name of a column, such as "censored"',
    "event": 'the name of a column, such as "died"',
    "exposure": 'the name of a column, such as "days"',
    "transform": 'a table of targets on a log scale, such as { price = "log" }',
    "categorical": 'a list of column names or patterns, such as ["zip"]',
    "ordered": 'a table of columns with their levels in order, such as size = ["S", "M", "L"]',
    "missing": '"indicator", or left out',
    "unknown": '"refuse" or "ignore"',
    "missing_marks": 'a list of texts or numbers that mark missing values, such as ["-999", "?"], or []',
    "decimal": '"." or ","',
    "separator": 'one of ",", ";", "|", "\\t" for a tab, and " " for blanks',
    "header": 'a list of column names, such as ["x1", "x2", "y"], or false',
    "skip_rows": "a whole number of at least 0",
    "standardize": 'a list of "inputs" or "inputs together", and "targets", or of some of these',
    "model": "a table with kind, and noise or dispersion or classes or hazard",
    "kind": " or ".join(f'"{kind}"' for kind in DATA_MODELS),
    "noise": 'the prior of the noise, such as "0.1:0.2" (in sghmc "none" or "estimate")',
    "dispersion": 'the prior of the dispersion, such as "0.3:0.5", or "none"',
    "classes": "a whole number of at least 2",
    "hazard": '"constant" or "piecewise"',
    "time_points": "the increasing times at which the hazard changes, such as [0.5, 1, 2]",
    "log_time": "true or false",
    "noise_floor": "a positive number, such as 0.01",
    "network": "a table with hidden and priors",
    "omit": 'a table of inputs left out, such as ih0 = ["x1"]',
    "connections": 'a table of configured connections, such as ih0 = { file = "connections.csv" }',
    "hidden": 'a list of layers, such as [{ units = 16, activation = "tanh" }], or []',
    "units": "a whole number from 1 to 1000000",
    "activation": "one of "
    + ", ".join(f'"{name}"' for name in ACTIVATIONS + LAYER_ACTIVATIONS)
    + " (and for draws from the prior "
    + ", ".join(f'"{name}"' for name in PRIOR_ACTIVATIONS)
    + ")",
    "groups": '"i // n" or "i % n" with n a divisor of the units',
    "product": "the number of an earlier hidden layer, from 0",
    "priors": 'a table of priors, such as ih0 = "1:0.2"',
    "parts": 'a whole number of at least 1, "auto", or left out',
    "shuffle": "true or false",
    "initial": "a table with sigmas = 0.5 or from_prior = true",
    "sigmas": "a number from 1e-12 to 1e12, such as 0.5",
    "from_prior": "true or false",
    "phase": "at least one [[phase]] with iterations and operations, and at most 1000",
    "iterations": f"a whole number from 1 to {MAX_WORD}",
    "keep": 'true, false or "warmup"',
    "operations": 'a list of at least one operation, such as [{ op = "heatbath" }]',
    "op": "one of " + ", ".join(f'"{name}"' for name in OPERATION_NAMES),
    "decay": "a number of at least 0 and below 1",
    "steps": 'a whole number of at least 1, such as 64 (or "auto" in hybrid and hybrid-marginal)',
    "stepsize": 'a positive number, such as 0.3 (or "auto" in hybrid, hybrid-marginal and sghmc)',
    "window": "a whole number from 1 to steps + 1",
    "partitions": "a whole number of at least 1",
    "order": '"cyclic", with partitions > 1, or left out',
    "permuted": "true or false",
    "max_steps": "a whole number of at least 1",
    "max_ok": "a whole number of at least 1",
    "jump": "a whole number that divides the number of steps",
    "integrator": '"leapfrog", "two-stage" or "fourth-order" (in sghmc "splitting", "euler" or "langevin")',
    "batch": "a whole number of cases of at least 1, such as 100, or left out",
    "friction": "a number of at least 0, such as 1.0",
    "level": '"lower" or "upper", or left out for both',
    "random": "true or false",
    "direction": '"random" or "persistent"',
    "acceptance": '"metropolis" or "barker"',
    "doubling": "true or false",
    "along": '"sigmas" or "incoming"',
    "over": 'a list of "outputs", "precisions" or both',
    "stepsize_jitter": "a positive number (alpha of a Gamma) or a negative one (decades)",
    "scaling": '"auto", with stepsize = "auto" (hybrid, hybrid-marginal and sghmc), or left out',
    "times": "a whole number of at least 1",
    "inverse_temperatures": "a list of numbers that begins with 1 and descends, such as [1, 0.5, 0.2]",
    "ladder": "a table of settings, such as levels = 24",
    "levels": 'a whole number from 3 to 500, or "auto"',
    "hot": 'a positive number, such as 0.5, or "auto"',
    "warmup": f"a whole number from 1 to {MAX_WORD}, or left out",
    "annealing": f"a whole number from 4 to {MAX_WORD}",
    "adaptation": f"a whole number from 8 to {MAX_WORD}",
    "log_weights": "a list of one number for each of inverse_temperatures",
}
_RIGHT_IN_OPERATIONS = {"groups": 'a list of groups with precisions, such as ["ih0", "noise"]'}
_RIGHT_IN_METHODS = {
    "methods": "a table of methods, such as bbb = { steps = 8000 }",
    "method": one_of(("hmc", "sghmc", *APPROXIMATIONS)),
    "hmc": "a table with phase",
    "sghmc": "a table with phase",
    **{name: f"a table of settings, such as starts = {kind.starts}" for name, kind in APPROXIMATIONS.items()},
}
_RIGHT_OF_APPROXIMATIONS: dict[tuple[int | str, ...], dict[str, str]] = {
    ("methods", name): right_values(kind) for name, kind in APPROXIMATIONS.items()
}
_RIGHT_PRIOR = 'a prior in FBM\'s notation, such as "0.5:0.2"'
_RIGHT_ELEMENT = {
    "inputs": "a column name",
    "exclude": "a column name",
    "categorical": "a column name",
    "ordered": "the text of a level",
    "missing_marks": "a text or a number",
    "header": "a column name",
    "transform": '"log"',
    "targets": "a column name",
    "standardize": '"inputs", "inputs together" or "targets"',
    "time_points": "a positive number, such as 0.5",
    "omit": "an input's name",
    "inverse_temperatures": "a number from 0 to 1",
    "log_weights": "a number",
    "hidden": 'a layer, such as { units = 16, activation = "tanh" }',
    "phase": "a table with iterations and operations",
    "operations": 'a table, such as { op = "heatbath" }',
    "groups": 'the name of a group, such as "ih0"',
    "over": '"outputs" or "precisions"',
}


def messages(error: ValidationError, sections: Mapping[tuple[str, ...], Collection[str]]) -> list[str]:
    """Return a message for each wrong key. Equal messages, as from the members of a union, appear once.

    sections  section, such as ("network", "hidden") -> the keys that it can have
    """
    if error.error_count() > _MOST_ERRORS:  # pydantic would take long to describe them
        return [f"configuration: {error.error_count()} values are wrong"]
    wrong = error.errors(include_url=False)
    more = len(wrong) - _MOST_MESSAGES
    # pydantic also calls a list too short when its elements are wrong; a line for the elements is enough.
    inside = {details["loc"][:n] for details in wrong for n in range(len(details["loc"]))}
    lines = list(
        dict.fromkeys(
            _message(details, sections)
            for details in wrong[:_MOST_MESSAGES]
            if not (details["type"] == "too_short" and details["loc"] in inside)
        )
    )
    return [*lines, f"and {more} more"] if more > 0 else lines


def _message(details: ErrorDetails, sections: Mapping[tuple[str, ...], Collection[str]]) -> str:
    loc, kind, value = details["loc"], details["type"], details["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "unknown_key"):
        section = tuple(part for part in loc[:-1] if isinstance(part, str))
        if section == ("data",) and loc[-1] in _WEIGHTS:
            return f"{_path(loc)}: {WEIGHTS_REFUSED}"
        known = details["ctx"]["known"] if kind == "unknown_key" else sections[section]
        hint = nearest(str(loc[-1]), known)
        return f"{_path(loc)}: unknown key{hint}; the keys here are {', '.join(known)}"
    is_prior = loc[:2] == ("network", "priors") and len(loc) > 2
    if loc[:2] == ("data", "ordered") and len(loc) > 2:
        places = [part for part in loc[2:] if isinstance(part, int)]
        key, right = _path(loc), _RIGHT_ELEMENT["ordered"] if places else RIGHT["ordered"]
        return f"{key}: must be {right}, got {short(value)}"
    right_here = _RIGHT_OF_APPROXIMATIONS.get(loc[:2], {})
    if not is_prior:  # drop the names of a union's members, which pydantic adds but which are not keys
        known = RIGHT.keys() | _RIGHT_IN_METHODS.keys() | right_here.keys()
        loc = tuple(part for part in loc if isinstance(part, int) or part in known)
    key = _path(loc)
    if kind in ("value_error", "operation"):
        text = details["msg"].removeprefix("Value error, ")
        return f"{key}.{text}" if kind == "value_error" else f"{key}: {text}, got {short(value)}"
    name = next((part for part in reversed(loc) if isinstance(part, str)), "")
    if is_prior:
        right = _RIGHT_PRIOR
    elif loc and isinstance(loc[-1], int):
        right = _RIGHT_ELEMENT[name]
    elif name in right_here:
        right = right_here[name]
    elif loc[:1] in (("method",), ("methods",)) and "phase" not in loc:
        right = _RIGHT_IN_METHODS.get(name, "a table of keys")
    elif "operations" in loc and name in _RIGHT_IN_OPERATIONS:
        right = _RIGHT_IN_OPERATIONS[name]
    else:
        right = RIGHT.get(name, "a table of keys")
    if kind == "missing":
        return f"{key}: missing; it must be {right}"
    hint = nearest(value, _choices(name)) if isinstance(value, str) else ""
    return f"{key}: must be {right}, got {short(value)}{hint}"


def _path(loc: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".") or "configuration"


def _choices(name: str) -> tuple[str, ...]:
    return {
        "activation": ACTIVATIONS + LAYER_ACTIVATIONS + PRIOR_ACTIVATIONS,
        "kind": tuple(DATA_MODELS),
        "hazard": ("constant", "piecewise"),
        "integrator": ("leapfrog", "two-stage", "fourth-order", "splitting", "euler", "langevin"),
        "level": ("lower", "upper"),
        "along": ("sigmas", "incoming"),
        "order": ("cyclic",),
        "over": ("outputs", "precisions"),
        "acceptance": ("metropolis", "barker"),
        "direction": ("random", "persistent"),
        "op": OPERATION_NAMES,
    }.get(name, ())


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint with the known name that is most like `name`, or "" if none is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def short(value: object) -> str:
    """Return a value as messages show it, in at most 80 characters."""
    if isinstance(value, int) and abs(value) >= 2**63:  # Python refuses to print more than 4,300 digits
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value[:200]  # a text may be a megabyte long
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
