"""Every code block of README.md and docs/ runs as it stands, page by page.

A page is run from top to bottom in a folder of its own, with the files that it says its reader has. Blocks of
Python are executed, those of the console are run command by command (lines that begin with `$ `), those
of TOML are read as configurations or parts of one. tests/support/pages.py has the marks of blocks that cannot
be run.

The quick tests change how long runs are: a phase has two iterations, a longer run two more, and `--until ok`
one round. Pictures stay empty. Everything samples in this process. The tests marked `long` run the pages that
show output with the lengths that they give, and compare this output with what is printed, word by word and
without numbers.

docs/fbm.md names every choice of a configuration, and no verb that does not exist.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from packaging.requirements import Requirement
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.model.architecture import ACTIVATIONS, LAYER_ACTIVATIONS, PRIOR_ACTIVATIONS
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.run import running
from rayfbnn.run.executor import InProcess
from rayfbnn.run.on_ray import cluster
from rayfbnn.run.progress import Display
from rayfbnn.spec import RunSpec, run_spec
from rayfbnn.spec.messages import OPERATION_NAMES
from rayfbnn.streams import Purpose, Streams
from rayfbnn.verbs import until
from tests.support.pages import PAGES, ROOT, Block, blocks, commands, first_problem, starts_with

LANGUAGES = {"python", "console", "toml", "text"}  # text is output, or a formula
MARKS = ("file", "exit", "name", "needs", "not run")
SHORT = 2  # iterations of a phase
JUDGING = re.compile(r"rayfbnn diagnose|rayfbnn study run|--until")  # they end with 3 if a run is too short
# What the quick tests add to commands on studies: few members, with a look after their only two draws.
ON_STUDIES = {("study", "create"): ["--seeds", "2", "--looks", "1"], ("study", "run"): ["--workers", "0"]}
TESTED = [page for page in PAGES if any(block.language != "text" for block in blocks(page))]
SHOWING = [
    page
    for page in TESTED
    if any(shown for block in blocks(page) if block.language == "console" for _, shown in commands(block))
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample without Ray."""
    monkeypatch.setattr(running, "new_executor", lambda *arguments: InProcess())
    monkeypatch.setattr(running, "display", lambda store, show: Display())
    monkeypatch.setattr(cluster, "check_ray", lambda workers, address: None)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every run short, whatever it was told."""
    default_phases, with_iterations = run_spec.default_phases, RunSpec.with_iterations

    def short_phases(*arguments: Any, **options: Any) -> Any:
        phases = default_phases(*arguments, **options)
        return tuple(phase.model_copy(update={"iterations": SHORT}) for phase in phases)

    def little_longer(spec: RunSpec, iterations: int) -> RunSpec:
        return with_iterations(spec, min(iterations, spec.phase[-1].iterations + SHORT))

    monkeypatch.setattr(run_spec, "default_phases", short_phases)
    monkeypatch.setattr(RunSpec, "with_iterations", little_longer)
    monkeypatch.setattr(until, "_following", lambda *arguments, **options: None)
    monkeypatch.setattr(Figure, "savefig", save_blank)


def save_blank(figure: Figure, file: Any, **options: Any) -> None:
    """Write an empty picture, as drawing takes longer than all the rest together."""
    if isinstance(file, str | Path):
        Path(file).touch()
    elif options["format"] == "svg":
        file.write("<svg />")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files that a page may start with.

    They are tables of x1, x2 and y, the README's configuration, and short runs of it and of two networks.
    """
    folder = tmp_path_factory.mktemp("base")
    numbers = Streams(seed=1, chains=np.zeros(1, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (30, 3))[0]
    rows = [",".join(f"{value:.4f}" for value in row) for row in numbers]
    for name in ("train.csv", "test.csv", "new.csv"):
        (folder / name).write_text("\n".join(["x1,x2,y", *rows, ""]))
    for fold in range(10):  # each lacks other cases
        some = [row for number, row in enumerate(rows) if number % 10 != fold]
        (folder / f"train_{fold}.csv").write_text("\n".join(["x1,x2,y", *some, ""]))
        (folder / f"test_{fold}.csv").write_text("\n".join(["x1,x2,y", *rows[fold::10], ""]))
    (folder / "run.toml").write_text(first_problem())
    with pytest.MonkeyPatch.context() as monkeypatch:
        stay_in_this_process(monkeypatch)
        shorten(monkeypatch)
        rayfbnn.sample(folder / "run.toml", folder / "run.zarr")
        rayfbnn.resume(folder / "run.zarr", iterations=2 * SHORT)  # four draws are enough for a diagnosis
        for name, units in (("wide", 4), ("narrow", 2)):
            layers = f"network.hidden=[{{units={units}}}]"
            rayfbnn.sample(folder / "run.toml", folder / f"{name}.zarr", set=[layers])
            rayfbnn.resume(folder / f"{name}.zarr", iterations=2 * SHORT)
    return folder


@dataclass
class Reader:
    """Somebody who does what a page says, in a folder.

    is_short  whether runs are cut short, so that verdicts and numbers differ from the page's
    names     what the page's Python has defined so far
    """

    page: Path
    folder: Path
    is_short: bool
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def do(self, block: Block) -> None:
        if block.marked("not run") or not is_installed(block.marked("needs")):
            return
        if name := block.marked("file"):
            (self.folder / name).write_text(block.text)
        if block.language == "python":
            exec(compile(block.text, f"{name_of(self.page)}:{block.line}", "exec"), self.names)
        elif block.language == "console":
            self.run_commands(block)
        elif block.language == "toml":
            self.read_configuration(block)

    def run_commands(self, block: Block) -> None:
        for command, shown in commands(block):
            words = shlex.split(command, comments=True)
            is_last = command == commands(block)[-1][0]
            codes = (block.marked("exit") or "0") if is_last else "0"
            as_shown, *others = (int(code) for code in codes.split(" or "))
            expected = {as_shown, *others}
            if self.is_short and JUDGING.match(command):
                expected |= {0, cli.NOT_CONVERGED}
            assert words[0] == "rayfbnn", f"line {block.line}: only rayfbnn can be run here, got {command}"
            added = ON_STUDIES.get(tuple(words[1:3]), []) if self.is_short else []
            result = CliRunner().invoke(cli.app, [*words[1:], *added])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert result.exit_code in expected, f"line {block.line}: {command}\n{result.output}"
            if result.exit_code == as_shown and (not self.is_short or words[1] == "show"):
                assert not missing_lines(shown, result.output), f"line {block.line}: {command}"

    def read_configuration(self, block: Block) -> None:
        """Read it alone if it is a file or has targets, otherwise as a change of the README's one."""
        tables = tomllib.loads(block.text)
        if not block.marked("file") and "targets" not in tables.get("data", {}):
            tables = merged(tomllib.loads(first_problem()), tables)
        RunSpec.from_dict(tables, base_dir=self.folder)


def is_installed(requirement: str) -> bool:
    """True if a package is installed in such a version, or none is required."""
    if not requirement:
        return True
    parsed = Requirement(requirement)
    return parsed.specifier.contains(version(parsed.name))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The tables of `old` with those of `new` laid over them."""
    both = {key: merged(old[key], new[key]) for key in old.keys() & new.keys() if isinstance(new[key], dict)}
    return old | new | both


def words_of(line: str) -> tuple[str, ...]:
    """The words of a line without its numbers."""
    return tuple(re.findall(r"[A-Za-z_]{2,}", line))


def missing_lines(shown: list[str], output: str) -> list[str]:
    """The lines that a page shows but the command did not print; "..." stands for anything."""
    printed = {words_of(line) for line in output.splitlines()}
    return [line for line in shown if "..." not in line and words_of(line) not in printed]


def read_page(page: Path, base: Path, folder: Path, *, is_short: bool) -> None:
    patterns = starts_with(page)
    names = [path.name for name in patterns if "*" in name for path in base.glob(name)]
    for name in [*names, *(name for name in patterns if "*" not in name)]:
        source = base / name if (base / name).exists() else ROOT / name
        if name.startswith("examples/"):
            shutil.copytree(source, folder, dirs_exist_ok=True)
        elif source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    reader = Reader(page, folder, is_short)
    for block in blocks(page):
        reader.do(block)


@pytest.mark.parametrize("page", TESTED, ids=name_of)
def test_the_blocks_of_a_page_run(
    page: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stay_in_this_process(monkeypatch)
    shorten(monkeypatch)
    read_page(page, base, tmp_path, is_short=True)


@pytest.mark.long
@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_the_blocks_of_a_page_run_for_as_long_as_they_say(
    page: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stay_in_this_process(monkeypatch)
    read_page(page, base, tmp_path, is_short=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_a_page_is_of_a_kind_that_is_tested(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"line {block.line}"
        assert not block.mark or any(block.marked(word) for word in MARKS), block.mark
    # An indented block would escape the tests.
    indented = re.findall(r"^    (?:\$|rayfbnn|make|pip|python|import|from) .*", page.read_text(), re.M)
    in_blocks = "\n".join(block.text for block in blocks(page))
    assert not [line for line in indented if line not in in_blocks]
    assert not re.search(r"^ +```", page.read_text(), re.M), "a fence in a list would escape the tests"


def test_output_that_is_not_printed_is_found() -> None:
    printed = "Network: 12 inputs - 8 tanh\nok\n"
    assert not missing_lines(["Network: 3 inputs - 8 tanh", "..."], printed)
    assert missing_lines(["Network: 3 outputs - 8 tanh"], printed) == ["Network: 3 outputs - 8 tanh"]


PAGE = (Path(__file__).parents[2] / "docs" / "fbm.md").read_text()


@pytest.mark.parametrize(
    "name", [*ACTIVATIONS, *LAYER_ACTIVATIONS, *PRIOR_ACTIVATIONS, *DATA_MODELS, *OPERATION_NAMES]
)
def test_every_choice_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}[` ]|\"{name}\"", PAGE)


def test_every_verb_on_the_page_is_there() -> None:
    verbs = {command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    named = set(re.findall(r"`rayfbnn (\w+)", PAGE))
    assert named and named <= verbs
