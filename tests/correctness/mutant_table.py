"""A list of all bugs that the tests put in on purpose, with the test that must show each."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parent.parent

# A test whose name ends like this fails if the bug is not seen.
_KILLS = re.compile(
    r"test_(mutant\w*_(is_killed|does_not_reverse|is_of_lower_order)|\w*_(is|are)_(killed|seen)|\w*_make(s)?_it_fail"
    r"|chains_of_a_wrong_model_are_told_from_exact_draws)$"
)
# Tests of one bug whose names do not describe it, with the bug in words.
_ALSO_KILL = {
    "tests/mcmc/test_leapfrog.py::test_energy_error_without_half_kicks_is_of_first_order": "no half kicks",
    "tests/mcmc/test_leapfrog.py::test_stepsizes_that_depend_on_the_state_change_volume": (
        "stepsizes that depend on the state"
    ),
    "tests/mcmc/test_leapfrog.py::test_the_same_order_does_not_reverse": "back in the same order",
    "tests/mcmc/test_hmc.py::test_momentum_is_reversed_on_acceptance_only": "negated as a whole",
    "tests/mcmc/test_compositions.py::test_steps_reverse": "not_symmetric",
    "tests/model/marginal/test_polya_gamma.py::test_keeping_the_last_draw_shows_in_the_batch": (
        "the last draw kept"
    ),
}
# Bugs that tests of exactness cannot see, because they leave the distribution as it is.
EQUIVALENT: dict[str, dict[str, str]] = {
    "tests/mcmc/test_invariance.py::test_equivalent_mutant_stays_exact": {
        "negated_as_a_whole": "It is the whole update followed by a negation, and both leave the distribution"
        " as it is. test_momentum_is_reversed_on_acceptance_only shows the change.",
        "sub_step_not_divided": "It only uses another stepsize."
        " test_partial_steps_of_equal_terms_are_shorter_full_steps shows the change.",
        "wrong_gradient": "Any force that depends on the position alone gives reversible steps that preserve"
        " volume, and the decision uses the right energy. The chain is only slower. The gradient tests show"
        " the change.",
    },
    "tests/mcmc/test_invariance.py::test_order_mutants_need_three_partitions": {
        "fixed_order": "With two partitions a step visits 0 1 0, its own reverse. Three partitions show the"
        " bug.",
        "bwd_same_order": "As for fixed_order: three partitions show the bug.",
    },
    "tests/mcmc/test_invariance.py::test_dropping_negate_stays_exact": {
        "": "The momentum turns back after every acceptance, which is correct but slow. A configuration may"
        " leave negate out.",
    },
    "tests/mcmc/one_at_a_time/test_one_at_a_time.py::test_stepping_out_beyond_the_slice_stays_exact": {
        "": "Whatever rule ends an interval, all points of the slice lead to it with the same probability.",
    },
    "tests/mcmc/one_at_a_time/test_one_at_a_time.py::test_looking_at_every_half_stays_exact": {
        "": "A half that holds the value cannot have both ends outside the slice, because doubling would"
        " have ended there.",
    },
    "tests/mcmc/tempering/test_tempering.py::test_equivalent_mutant_of_simulated_tempering_stays_exact": {
        "weights of the other sign": "The distribution at temperature one is the same with any weights. With"
        " these, the levels are only visited unevenly.",
        "off the ladder is to stay": "A proposal off the ladder is clipped to the level where the chain is,"
        " so accepting it changes nothing.",
    },
    "tests/mcmc/tempering/test_tempering.py::test_persistent_walk_with_idle_steps_stays_exact": {
        "goes on until it is turned upwards": "States at level 0 have the target's density with either"
        " direction. The walk only does the operations at level 0 once more.",
        "begins downwards": "As above: each excursion is a single step at level 0, which turns the direction."
        " test_tempering_goes_from_mode_to_mode_where_plain_trajectories_do_not shows the change.",
    },
}
# Tests that change a module for another reason than to put a bug in.
_OTHER_USES = {
    "tests/model/updates/test_random_grid.py": {
        "test_exact_draws_stay_exact",
        "test_densities_are_the_joint_density_up_to_a_constant",
    },
    "tests/model/updates/test_gibbs.py": {
        "test_exact_draws_stay_exact_under_gibbs_updates",
        "test_exact_draws_stay_exact_under_updates_of_some_precisions",
    },
    "tests/model/test_prior.py": {"test_rejection_sampling_is_from_the_posterior"},
    "tests/model/test_tempered.py": {"test_noise_given_a_power_of_the_likelihood_is_drawn_exactly"},
}


@dataclass(frozen=True)
class Mutant:
    """A bug and the test that kills it: file from the root, function."""

    bug: str
    file: str
    test: str


def mutants() -> list[Mutant]:
    """All mutants that a test kills, in the order of the files, without repetitions on the GPU."""
    table = []
    for file, name in _test_functions():
        key = f"{file}::{name}"
        if key in _ALSO_KILL:
            table.append(Mutant(_ALSO_KILL[key], file, name))
        elif _KILLS.match(name) and _is_about_numbers(file):
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            cases = list(_cases(module, getattr(module, name)))
            table += [Mutant(_bug(name, case), file, name) for case in cases]
    return table


def unaccounted() -> list[str]:
    """Tests that change a module of the package and are neither in the table nor explained here."""
    problems = []
    for file in _files():
        for name in sorted(_reach_a_mutant(file)):
            key = f"{file}::{name}"
            known = key in _ALSO_KILL or key in EQUIVALENT or name in _OTHER_USES.get(file, ())
            if not (known or _KILLS.match(name) or name.endswith("_on_the_gpu")):
                problems.append(key)
    there = {f"{file}::{name}" for file, name in _test_functions()}
    named = {
        *_ALSO_KILL,
        *EQUIVALENT,
        *(f"{file}::{name}" for file, names in _OTHER_USES.items() for name in names),
    }
    return problems + sorted(named - there)


def equivalent_in_tests() -> dict[str, set[str]]:
    """The equivalent mutants in the tests, which EQUIVALENT must name."""
    equivalent = {}
    for key in EQUIVALENT:
        file, name = key.split("::")
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        equivalent[key] = set(_cases(module, getattr(module, name)))
    return equivalent


def _files() -> list[str]:
    """All files of tests but those of the mutator, whose mutants are mechanical."""
    paths = (path for path in sorted(TESTS.rglob("test_*.py")) if path.name != "test_mutation.py")
    return [str(path.relative_to(TESTS.parent)) for path in paths]


def _is_about_numbers(file: str) -> bool:
    """Return False for the killed processes of tests/faults and the wrong files of tests/spec."""
    folders = ("correctness", "model", "mcmc", "approximate", "answers", "draws", "selftest")
    return file.split("/")[1] in folders


def _test_functions() -> Iterator[tuple[str, str]]:
    for file in _files():
        for node in ast.parse((TESTS.parent / file).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield file, node.name


def _reach_a_mutant(file: str) -> set[str]:
    """Names of test functions that call `mutant` or a helper that does, or that use its result."""
    return {name for name in _names_that_reach_a_mutant(file) if name.startswith("test_")}


@cache
def _names_that_reach_a_mutant(file: str) -> frozenset[str]:
    """All such names in a file, including helpers that it imports from tests/support."""
    uses: dict[str, set[str]] = {}
    reached = {"mutant"}
    for node in ast.parse((TESTS.parent / file).read_text()).body:
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            uses[node.name] = names
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            uses |= {target.id: names for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests.support."):
            helper_file = f"{node.module.replace('.', '/')}.py"
            if not (TESTS.parent / helper_file).exists():  # a folder, from which modules are imported
                continue
            helpers = _names_that_reach_a_mutant(helper_file)
            reached |= {alias.asname or alias.name for alias in node.names if alias.name in helpers}
    while more := {name for name, names in uses.items() if names & reached} - reached:
        reached |= more
    return frozenset(reached)


def _cases(module: ModuleType, test: Any) -> Iterator[str]:
    """The cases of a parametrised test in words; one empty string for any other test."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in reversed(marks))):
        yield ", ".join(_words(module, value) for value in values)


def _words(module: ModuleType, value: Any) -> str:
    if hasattr(value, "values") and hasattr(value, "marks"):  # pytest.param
        return ", ".join(_words(module, part) for part in value.values)
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        if len(value) == 2 and all(isinstance(part, str) for part in value):
            before, after = (" ".join(part.split()) for part in value)
            return f"`{after}` for `{before}`" if after else f"`{before}` left out"
        return ", ".join(_words(module, part) for part in value)
    names = [name for name, part in vars(module).items() if part is value]
    return getattr(value, "__name__", str(value)) if not names else names[0]


def _bug(test: str, case: str) -> str:
    """The case if the test has a table of bugs; otherwise the test's name, followed by the case."""
    in_words = re.sub(r"_(is|are)_(killed|seen)$|_makes?_it_fail$|^test_", "", test).replace("_", " ")
    is_table = re.match(r"test_(mutant|a_wrong|wrong_blocks|chains_of)", test) is not None
    if case == "":
        return in_words
    return case if is_table else f"{in_words}: {case}"
