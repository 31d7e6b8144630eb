"""How many of a random sample of mutants are killed by the quick tests that call their functions.

python -m benchmarks.mutation.run [--mutants 200] [--seconds 20] [--again] [--since COMMIT]

It resumes where it was stopped. With --since, mutants are of lines that COMMIT does not have.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.mutation.child import import_libraries, run_tests
from benchmarks.mutation.mutants import Mutant, chosen, compiled

FOLDER = Path(".benchmarks/mutants")
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
_FEW = 6
Record = dict[str, Any]  # a line of a file: a test with what it calls, or a mutant with what killed it


def main() -> None:
    """Test the first mutants that have no result yet, and print the table of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20, help="of tests for each mutant, as recorded")
    parser.add_argument("--again", action="store_true", help="test those again that have survived")
    parser.add_argument("--since", default="", help="a commit: mutants of lines that it does not have")
    options = parser.parse_args()
    mutants, tests = chosen(options.since)[: options.mutants], _read("functions.jsonl")
    results = {line["mutant"]: line for line in _read("results.jsonl")}
    import_libraries()
    for number, mutant in enumerate(mutants, 1):
        before = results.get(mutant.key)
        if before is None or (options.again and not before["by"]):
            result = results[mutant.key] = tested(mutant, tests, options.seconds)
            with (FOLDER / "results.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{number} of {len(mutants)}: {result['by'] or 'SURVIVED'}: {mutant.key}", flush=True)
    print(table(mutants, results))


def tested(mutant: Mutant, tests: Iterable[Record], seconds: float) -> Record:
    """Return what killed a mutant, "" if nothing, and how many of the tests that call it were run."""
    matching = in_order(mutant, tests)
    some, total = [], 0.0
    for test in matching:
        total += test["seconds"]
        if some and total > seconds:
            break
        some.append(test["test"])
    by, code = "", compiled(mutant)
    for names in (some[:_FEW], some[_FEW:]):  # most are killed by few, for which few files are imported
        if names and not by:
            by = run_tests(names, seconds=60 + 3 * total, file=mutant.file, code=code)
    return {"mutant": mutant.key, "by": by, "run": len(some), "matching": len(matching)}


def in_order(mutant: Mutant, tests: Iterable[Record]) -> list[Record]:
    """Return the tests that call a mutant's function: the most special one of each file, then the second, ...

    A test that calls few functions is more likely to be about this one, and is fast.
    """
    name = f"{mutant.file}:{mutant.function}"
    by_file = defaultdict(list)
    for test in sorted(tests, key=_n_functions):
        if any(
            called == name or (called.startswith(name) and not mutant.function)
            for called in test["functions"]
        ):
            by_file[test["test"].split("::")[0]].append(test)
    ranked = [(rank, test) for some in by_file.values() for rank, test in enumerate(some)]
    return [test for _, test in sorted(ranked, key=lambda pair: (pair[0], _n_functions(pair[1])))]


def _n_functions(test: Record) -> tuple[int, float]:
    return len(test["functions"]), test["seconds"]


def table(mutants: Iterable[Mutant], results: dict[str, Record]) -> str:
    """Return the survivors that are not known to be equivalent, and the numbers of mutants by folder."""
    equivalent = tomllib.loads(EQUIVALENT.read_text())
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    lines = []
    for mutant in mutants:
        if mutant.key in results:
            is_killed = bool(results[mutant.key]["by"])
            what = "killed" if is_killed else "equivalent" if mutant.key in equivalent else "survived"
            lines += [f"survived: {mutant.key}"] if what == "survived" else []
            counts[mutant.file.split("/")[0]][what] += 1
            counts["all"][what] += 1
    for folder, n in sorted(counts.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        lines.append(
            f"{folder:12}" + ", ".join(f"{n[what]:3} {what}" for what in ("killed", "survived", "equivalent"))
        )
    n = counts["all"]
    share = n["killed"] / max(1, n["killed"] + n["survived"])
    return "\n".join([*lines, f"{share:.1%} of those that are not equivalent are killed"])


def _read(name: str) -> list[Record]:
    path = FOLDER / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
