"""The commands: names and parameters as in Python, exit codes, and the stream of each output."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.errors import StoreFullError, WorkerError
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, small_spec

VERBS = (
    "sample",
    "resume",
    "predict",
    "diagnose",
    "loo",
    "reject",
    "prior",
    "check",
    "show",
    "verify",
    "plot",
    "export",
    "bench",
)
COMMANDS = {
    command.callback.__name__: command.callback for command in cli.app.registered_commands if command.callback
}


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run.toml, train.csv and a finished run.zarr, which no test changes."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "run.toml").write_text(small_spec(folder).to_toml())
    result = rayfbnn("sample", folder / "run.toml", folder / "run.zarr", "--workers", 0, "--no-progress")
    assert result.exit_code == 0, result.output
    assert "5 chains of 10 draws" in result.stdout
    assert result.stderr == ""
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_has_the_parameters_of_its_verb(verb: str) -> None:
    in_python = [*inspect.signature(getattr(api, verb)).parameters]
    if "sample_weight" in in_python:  # only there to be refused with a reason
        in_python.remove("sample_weight")
    in_shell = list(inspect.signature(COMMANDS[verb]).parameters)
    assert [name for name in in_shell if name != "as_json"] == in_python


def test_help_names_every_verb() -> None:
    help_of_all = rayfbnn("--help").stdout
    assert all(verb in help_of_all for verb in (*VERBS, "demo"))


_RARELY = {"ray", "zarr", "xarray", "arviz_stats", "matplotlib", "jinja2", "sklearn", "obstore", "asyncio"}
_RARELY |= {"rayfbnn.pictures", "rayfbnn.reporting", "rayfbnn.study", "rayfbnn.kernels.cuda", "rayfbnn.ring"}
_TABLES = {"pandas", "pyarrow", "scipy", "rayfbnn.data.frames", "rayfbnn.data.training"}
_ANSWERS = {"rayfbnn.answers", "rayfbnn.reduce", "rayfbnn.draws"}


@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        (["--help"], _RARELY | _TABLES | _ANSWERS | {"numpy", "rayfbnn.spec", "rayfbnn.store"}),
        (["sample", "--help"], _RARELY | _TABLES | _ANSWERS | {"numpy", "rayfbnn.spec", "rayfbnn.store"}),
        (["status", "run.zarr"], _RARELY | _TABLES | _ANSWERS | {"rayfbnn.kernels", "urllib.request"}),
        (["predict", "run.zarr", "--data", "train.csv"], _RARELY | {"rayfbnn.run.running", "scipy.stats"}),
        (["show", "run.zarr"], _RARELY - {"rayfbnn.kernels.cuda", "rayfbnn.ring"} | _ANSWERS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_needs(folder: Path, arguments: list[str], never: set[str]) -> None:
    code = (
        f"import sys; sys.argv = ['rayfbnn', *{arguments}]; from rayfbnn import cli\n"
        "try: cli.main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        f"found = {never} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sample", "run.toml", "new.zarr", "--workers", 0, "--no-progress", "--json"),
        ("resume", "run.zarr", "--workers", 0, "--no-progress", "--json"),
        ("predict", "run.zarr", "--data", "train.csv", "--json"),
        ("diagnose", "run.zarr", "--cases", 2, "--json"),
        ("loo", "run.zarr", "--json"),
        ("verify", "run.zarr", "--json"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_json_is_all_there_is_on_standard_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    monkeypatch.chdir(folder)
    result = rayfbnn(*arguments)
    shutil.rmtree(folder / "new.zarr", ignore_errors=True)
    assert result.exit_code in (0, cli.NOT_CONVERGED), result.output
    assert isinstance(json.loads(result.stdout), dict)


def test_lines_of_progress_go_to_standard_error(folder: Path, tmp_path: Path) -> None:
    result = rayfbnn("sample", folder / "run.toml", tmp_path / "run.zarr", "--workers", 0)
    assert "run.zarr: complete, 10 draws of each chain\n" in result.stderr
    assert "chains" not in result.stdout.splitlines()[1:]
    assert_same_draws(tmp_path / "run.zarr", folder / "run.zarr")


def test_predict_prints_each_measure_with_its_standard_error(folder: Path) -> None:
    result = rayfbnn("predict", folder / "run.zarr", "--data", folder / "train.csv")
    assert result.exit_code == 0
    for measure in ("squared_error", "absolute_error", "log_probability"):
        assert any(line.startswith(measure) and " +- " in line for line in result.stdout.splitlines())


def test_the_first_draws_can_be_left_out(folder: Path) -> None:
    store, data = folder / "run.zarr", folder / "train.csv"
    printed = json.loads(rayfbnn("predict", store, "--data", data, "--skip", 4, "--json").stdout)
    assert printed["draws"] == 5 * (10 - 4)
    assert "3 draws in each chain" in rayfbnn("diagnose", store, "--skip", 7).stdout
    refused = rayfbnn("diagnose", store, "--skip", 10)
    assert refused.exit_code == 2 and "skip: must be below 10, the draws" in refused.stderr


def test_diagnose_that_falls_short_exits_with_3_and_says_why(folder: Path) -> None:
    result = rayfbnn("diagnose", folder / "run.zarr")
    assert result.exit_code == 3
    assert "not ok:" in result.stdout and "thresholds: max_rhat 1.01" in result.stdout
    lax = rayfbnn("diagnose", folder / "run.zarr", "--max-rhat", 100, "--min-ess", 1)
    assert lax.exit_code == 0 and "\nok" in lax.stdout


def test_show_prints_a_configuration_and_a_store(folder: Path) -> None:
    assert "Priors" in rayfbnn("show", folder / "run.toml").stdout
    assert "of 3 chains" in rayfbnn("show", folder / "run.toml", "--set", "chains=3").stdout.lower()
    assert "10 draws" in rayfbnn("show", folder / "run.zarr").stdout


def test_verify_exits_with_1_and_names_the_file(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(folder / "run.zarr", store)
    assert rayfbnn("verify", store).exit_code == 0
    record = sorted((store / "commits").rglob("*.segment"))[-1]
    record.write_bytes(record.read_bytes()[:-5])
    result = rayfbnn("verify", store)
    assert result.exit_code == 1
    assert record.name in result.stdout and "--repair sets damaged blocks aside" in result.stdout
    repaired = rayfbnn("verify", store, "--repair")
    assert repaired.exit_code == 0 and "resume recomputes them" in repaired.stdout
    assert rayfbnn("resume", store, "--workers", 0).exit_code == 0
    assert rayfbnn("verify", store).exit_code == 0
    assert_same_draws(store, folder / "run.zarr")


# Exit codes.


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("sample", "none.toml", "new.zarr"), 2, "none.toml"),
        (("sample", "run.toml", "run.zarr"), 2, "already exists"),
        (("sample", "run.toml", "new.zarr", "--set", "sed=1"), 2, "did you mean seed?"),
        (("sample", "run.toml", "new.zarr", "--workers", "-1"), 2, "workers: must be 0"),
        (("sample", "run.toml", "new.zarr", "--workers", "many"), 2, "--workers"),
        (("sample", "run.toml"), 2, "STORE"),
        (("sample", "run.toml", "new.zarr", "--nothing"), 2, "--nothing"),
        (("sample", "run.toml", "none/new.zarr"), 2, "there is no folder"),
        (("resume", "none.zarr"), 2, "none.zarr"),
        (("resume", "run.zarr", "--iterations", "3"), 2, "iterations: must be at least 10"),
        (("predict", "run.zarr", "--data", "none.csv"), 2, "no such file: none.csv"),
        (("predict", "run.zarr"), 2, "--data"),
        (("reject", "run.toml", "new.zarr", "--draws", "0"), 2, "draws: must be at least 1"),
        (("reject", "run.toml", "new.zarr", "--draws", "9", "--max-proposals", "1"), 1, "1 proposals"),
        (("diagnose", "train.csv"), 2, "train.csv"),
        (("diagnose", "run.zarr", "--cases", "0"), 2, "cases: must be at least 1, got 0"),
        (("diagnose", "run.zarr", "--max-rhat", "nan"), 2, "max_rhat: must be a number of at least 1"),
        (("diagnose", "run.zarr", "--min-ess", "nan"), 2, "min_ess: must be a number above 0"),
        (("diagnose", "run.zarr", "--skip", "-1"), 2, "skip: must be at least 0"),
        (("verify", "none.zarr"), 2, "none.zarr: does not exist"),
        (
            ("plot", "run.zarr", "--out", "new", "--input-name", "x9"),
            2,
            "input_name: the store has no input x9",
        ),
        (("plot", "run.zarr", "--out", "new", "--data", "none.csv"), 2, "no such file: none.csv"),
        (("sample", "run.toml", "new.zarr", "--address", "here"), 2, 'address: must be "auto" or host:port'),
        (("sample", "run.toml", "new.zarr", "--address", "127.0.0.1:1"), 2, "nobody answers at 127.0.0.1:1"),
        (("nothing",), 2, "nothing"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_input_exits_with_its_code_a_message_and_no_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, named: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    result = rayfbnn(*arguments)
    assert result.exit_code == code, result.output
    assert named in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert sorted(folder.rglob("*")) == before


def test_a_store_in_use_exits_with_73(folder: Path) -> None:
    with Store.open(folder / "run.zarr").lock():
        result = rayfbnn("resume", folder / "run.zarr", "--workers", 0)
    assert result.exit_code == 73
    assert "in use by process" in result.stderr


@pytest.mark.parametrize(("error", "code"), [(StoreFullError, 75), (WorkerError, 1)])
def test_errors_of_a_run_exit_with_their_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("what happened")

    monkeypatch.setattr(api, "resume", fail)
    result = rayfbnn("resume", folder / "run.zarr")
    assert (result.exit_code, result.stderr) == (code, "rayfbnn resume: what happened\n")


def test_an_interrupted_run_exits_with_130_and_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("continue with: rayfbnn resume run.zarr")

    monkeypatch.setattr(api, "resume", stop)
    result = rayfbnn("resume", folder / "run.zarr")
    assert (result.exit_code, result.stderr) == (
        130,
        "rayfbnn resume: continue with: rayfbnn resume run.zarr\n",
    )


def test_a_lack_of_memory_exits_with_1_and_a_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise MemoryError("unable to allocate 7 TiB")

    monkeypatch.setattr(api, "diagnose", allocate)
    result = rayfbnn("diagnose", folder / "run.zarr")
    assert result.exit_code == 1
    assert result.stderr == "rayfbnn diagnose: out of memory: unable to allocate 7 TiB\n"


def test_a_bug_shows_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(api, "resume", break_down)
    assert isinstance(rayfbnn("resume", folder / "run.zarr").exception, ZeroDivisionError)


def test_the_verdict_on_predictions_can_decide_the_exit_code(folder: Path) -> None:
    lax = ("--max-rhat", 100, "--min-ess", 1)
    assert rayfbnn("diagnose", folder / "run.zarr", "--for", "predictions", *lax).exit_code == 0
    strict = rayfbnn("diagnose", folder / "run.zarr", "--for", "predictions", "--json", "--skip", 8)
    found = json.loads(strict.stdout)
    assert strict.exit_code == 3 and found["decisive"] == "predictions"
    assert found["ok"] is found["predictions"]["ok"] is False
    wrong = rayfbnn("diagnose", folder / "run.zarr", "--for", "sigmas")
    assert wrong.exit_code == 2 and 'must be "predictions", "all" or "fit", got "sigmas"' in wrong.stderr


def test_diagnose_looks_at_cases_of_a_file(folder: Path, tmp_path: Path) -> None:
    cases = tmp_path / "cases.csv"
    cases.write_text("x1,x2\n0.5,0.25\n0.1,0.2\n")
    found = json.loads(rayfbnn("diagnose", folder / "run.zarr", "--data", cases, "--json").stdout)
    functions = [name for name in found["quantities"] if name.startswith("y[")]
    assert functions == ["y[0]", "y[1]"] and found["predictions"]["error"]["cases"] == 2


def test_export_writes_a_file_and_says_how_large_it_is(folder: Path, tmp_path: Path) -> None:
    result = rayfbnn("export", folder / "run.zarr", "--out", tmp_path / "model.npz", "--draws", 20)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'model.npz'}: 0.0" in result.stdout.replace("\n", "")
    assert (tmp_path / "model.npz").exists()
    refused = rayfbnn("export", folder / "run.zarr", "--out", tmp_path / "model.txt")
    assert refused.exit_code == 2 and "out: must end in .npz" in refused.stderr
