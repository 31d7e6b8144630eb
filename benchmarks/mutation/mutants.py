"""All mutants of the files that decide results, in an order that a change of one file hardly disturbs."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from benchmarks.mutation.operators import changes

PACKAGE = Path(__file__).parents[2] / "rayfbnn"
DECIDING = (
    *("model/**/*.py", "mcmc/**/*.py", "approximate/*.py", "ring/*.py", "streams.py"),
    *("data/dataset.py", "data/training.py", "data/learning.py"),
    *("answers/predict.py", "answers/predictor.py", "answers/diagnostics.py", "answers/check.py"),
    *("answers/measures.py", "reduce/effective.py", "draws/subsets.py", "answers/judging/*.py"),
    *("answers/distances.py", "answers/comparison.py"),
    *("answers/loo.py", "reduce/importance.py"),
    *("reduce/importance.py", "study/rule.py", "study/files.py", "study/training_files.py"),
    *("store/rounds.py", "run/job.py"),
    *("store/block_files.py", "store/log.py"),
)
_LEFT_ALONE = {"annotation", "returns", "decorator_list"}
_NOT_ENTERED = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Mutant:
    """One change of a statement, in a file and its outermost function ("" outside any)."""

    file: str
    function: str
    kind: str
    old: str
    new: str
    number: int  # 1, or more if the function has the same statement again
    line: int = dataclasses.field(default=0, compare=False)

    @property
    def key(self) -> str:
        """The mutant in words, the same as long as its statement is."""
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.file}:{self.function}: {self.kind}: {self.old} -> {self.new}{again}"


def chosen(since: str = "") -> list[Mutant]:
    """Return every mutant, in the order of the SHA-256 of its key: the first n are a random sample.

    since  a commit: only mutants of lines that are not in it, or "" for all
    """
    files = sorted({path for pattern in DECIDING for path in PACKAGE.glob(pattern)})
    every = [mutant for file in files for mutant in mutants_of(file.read_text(), _name(file))]
    if since:
        new = new_lines(since)
        every = [mutant for mutant in every if mutant.line in new[mutant.file]]
    return sorted(every, key=lambda mutant: hashlib.sha256(f"0 {mutant.key}".encode()).digest())


def new_lines(since: str) -> defaultdict[str, set[int]]:
    """Return the numbers of the lines of each file of the package that a commit does not have."""
    command = ["git", "-C", str(PACKAGE), "diff", "--relative", "-M", "-U0", since, "--", "."]
    found: defaultdict[str, set[int]] = defaultdict(set)
    file = ""
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))?", line):
            found[file] |= set(range(int(match[1]), int(match[1]) + int(match[2] or 1)))
    return found


def mutants_of(source: str, file: str) -> list[Mutant]:
    """Return all mutants of a file."""
    return list(_each(ast.parse(source), file))


def compiled(mutant: Mutant) -> CodeType:
    """Return the code of a mutant's module."""
    path = PACKAGE / mutant.file
    tree = ast.parse(path.read_text())
    assert any(other == mutant for other in _each(tree, mutant.file)), f"no longer there: {mutant.key}"
    return compile(ast.fix_missing_locations(tree), str(path), "exec")  # _each has stopped at the mutant


def _each(tree: ast.Module, file: str) -> Iterator[Mutant]:
    """Yield each mutant of a tree, which is changed so until the next one is asked for."""
    count: Counter[tuple[str, ...]] = Counter()
    for node, put, around in _nodes(tree, []):
        for kind, other in changes(node):
            statement = node if isinstance(node, ast.stmt) else around[-1]
            old = _text(statement)
            put(other)
            what = _function(around), kind, old, _text(other if statement is node else statement)
            count[what] += 1
            yield Mutant(file, *what, count[what], getattr(node, "lineno", statement.lineno))
            put(node)


def _nodes(
    parent: ast.AST, around: list[ast.AST]
) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None], list[ast.AST]]]:
    """Yield the nodes below one, each with what puts another in its place, and the statements around it."""
    around = [*around, parent] if isinstance(parent, ast.stmt) else around
    for field, value in ast.iter_fields(parent):
        nodes = value if isinstance(value, list) else [value]
        for index, node in enumerate(nodes):
            if not isinstance(node, ast.AST) or field in _LEFT_ALONE:
                continue

            def put(other: ast.AST, field: str = field, index: int = index, node: ast.AST = node) -> None:
                now = getattr(parent, field)
                setattr(
                    parent,
                    field,
                    [*now[:index], other, *now[index + 1 :]] if isinstance(now, list) else other,
                )

            yield node, put, around
            if not isinstance(node, _NOT_ENTERED):
                yield from _nodes(node, around)


def _function(around: list[ast.AST]) -> str:
    """Return the qualified name of the outermost function, or ""."""
    names: list[str] = []
    for node in around:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            return ".".join(names)
    return ""


def _text(statement: ast.AST) -> str:
    """Return a statement on one line, of a compound one its head."""
    head = copy(statement)
    if isinstance(getattr(head, "body", None), list):  # a lambda's is an expression
        head.body = [ast.Pass()]
        if hasattr(head, "orelse"):
            head.orelse = []
    return ast.unparse(ast.fix_missing_locations(head)).partition("\n")[0]


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))
