"""Whatever becomes of the standard streams, commands end with the code of what they did."""

from __future__ import annotations

import ast
import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO, cast

import pytest

from rayfbnn import api
from rayfbnn.output import printing
from rayfbnn.output.printing import LastingStream, say, say_from_handler
from rayfbnn.run import progress
from rayfbnn.run.progress import LiveTable, display
from rayfbnn.store.store import Store
from rayfbnn.study import Study
from tests.support.output.forked import CLOSED, run_forked
from tests.support.small import make_store, small_spec

PACKAGE = Path(printing.__file__).parents[1]
NO_SPACE = "No space left on device"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in run.zarr, its configuration in run.toml, and its cases in train.csv."""
    folder = tmp_path_factory.mktemp("printing")
    spec = small_spec(folder)
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    (folder / "run.toml").write_text(spec.to_toml())
    # What these import, the forks have.
    api.diagnose(folder / "run.zarr")
    api.predict(folder / "run.zarr", data=folder / "train.csv")
    return folder


@contextmanager
def full() -> Iterator[int]:
    """A device that is full."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def pipe_without_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def terminal_gone() -> Iterator[int]:
    """A terminal whose other end is closed: writes give EIO."""
    master, slave = pty.openpty()
    os.close(master)
    yield slave
    os.close(slave)


@contextmanager
def closed() -> Iterator[int]:
    yield CLOSED


ENDS: dict[str, Callable[[], object]] = {
    "full": full,
    "pipe without reader": pipe_without_reader,
    "terminal that is gone": terminal_gone,
    "closed": closed,
}


def ended(arguments: tuple[object, ...], stdout: str | int, stderr: str | int) -> int:
    """Return the exit code of a command whose streams are each one of ENDS, or a descriptor."""
    with ExitStack() as stack:
        streams = [
            stack.enter_context(ENDS[name]()) if isinstance(name, str) else name  # type: ignore[arg-type]
            for name in (stdout, stderr)
        ]
        return run_forked(*arguments, stdout=streams[0], stderr=streams[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ENDS)
def test_a_run_whose_output_goes_nowhere_ends_complete(folder: Path, tmp_path: Path, end: str) -> None:
    path = tmp_path / "new.zarr"
    assert ended(("run", folder / "run.toml", path, "--workers", 0), end, end) == 0
    assert api.verify(path).ok
    assert Store.open(path).committed_draws == 10


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_that_loses_one_stream_ends_complete(
    folder: Path, tmp_path: Path, end: str, stream: str
) -> None:
    path, other = tmp_path / "new.zarr", os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)
    streams = (end, other) if stream == "stdout" else (other, end)
    assert ended(("run", folder / "run.toml", path, "--workers", 0), *streams) == 0
    assert Store.open(path).committed_draws == 10
    text = (tmp_path / "other").read_text()
    assert ("complete, 10 draws of each" if stream == "stdout" else "5 chains of 10 draws") in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnose", "run.zarr"),
        ("diagnose", "run.zarr", "--json"),
        ("show", "run.zarr"),
        ("status", "run.zarr"),
        ("verify", "run.zarr"),
        ("predict", "run.zarr", "--data", "train.csv"),
        ("study", "--help"),
        ("--help",),
        ("--version",),
    ],
)
def test_an_answer_that_is_lost_on_a_full_disk_ends_with_75(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    errors = os.open(tmp_path / "errors", os.O_CREAT | os.O_WRONLY)
    assert ended(arguments, "full", errors) == 75
    *_, last = (tmp_path / "errors").read_text().splitlines()
    assert last == f"rayfbnn: the answer is lost: standard output cannot be written: {NO_SPACE}"


@pytest.mark.parametrize("end", ["pipe without reader", "terminal that is gone", "closed"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("diagnose", "run.zarr"), 3),
        (("show", "run.zarr"), 0),
        (("status", "run.zarr", "--watch"), 0),
        (("show", "nothing.zarr"), 2),
        (("--help",), 0),
    ],
)
def test_an_answer_that_nobody_reads_leaves_the_code_of_the_command(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    end: str,
) -> None:
    monkeypatch.chdir(folder)
    errors = os.open(tmp_path / "errors", os.O_CREAT | os.O_WRONLY)
    assert ended(arguments, end, errors) == code
    assert len((tmp_path / "errors").read_text().splitlines()) == (1 if code == 2 else 0)


def test_watching_a_run_ends_with_its_reader(folder: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "begun.zarr", small_spec(tmp_path))  # never complete
    assert ended(("status", tmp_path / "begun.zarr", "--watch"), "pipe without reader", "full") == 0


def test_results_in_a_file_need_no_standard_output(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.csv"
    data = ("--data", folder / "train.csv")
    assert ended(("predict", folder / "run.zarr", *data, "--out", out), "full", "full") == 0
    assert out.read_text().startswith("y_mean")


def test_no_file_of_the_store_gets_the_number_of_a_closed_stream(folder: Path, tmp_path: Path) -> None:
    """Notes of signal handlers, and libraries written in C, write to descriptor 2 whatever it is."""
    opened = os.open
    file = tmp_path / "numbers"

    def record(*arguments: object, **more: object) -> int:
        descriptor = opened(*arguments, **more)  # type: ignore[arg-type]
        if arguments[0] != os.devnull:
            with file.open("a") as numbers:
                numbers.write(f"{descriptor}\n")
        return descriptor

    arguments = ("run", folder / "run.toml", tmp_path / "new.zarr", "--workers", 0)
    hook = lambda: setattr(os, "open", record)  # noqa: E731
    assert run_forked(*arguments, stdout=CLOSED, stderr=CLOSED, before=hook) == 0
    numbers = [int(line) for line in file.read_text().splitlines()]
    assert len(numbers) > 10
    assert min(numbers) > 2


@pytest.mark.parametrize("end", ["full", "pipe without reader", "terminal that is gone"])
def test_python_that_samples_with_a_dead_standard_error_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    with ENDS[end]() as descriptor:  # type: ignore[attr-defined]
        dead = open(descriptor, "w", closefd=False)
        monkeypatch.setattr(sys, "stderr", dead)
        api.sample(small_spec(tmp_path), tmp_path / "new.zarr", workers=0)
        assert Store.open(tmp_path / "new.zarr").committed_draws == 10
        sys.stderr.flush()  # as the interpreter does at its end
        monkeypatch.undo()
        with pytest.raises(OSError):
            dead.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        dead.close()


@pytest.mark.parametrize("streams", [(None, None), (None, sys.stderr), (sys.stdout, None)])
def test_a_program_without_streams_gets_lines_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: tuple[TextIO | None, TextIO | None]
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    shown = display(store, show=True)
    say("a line")
    if streams[1] is None:
        say_from_handler("a note")
    assert not isinstance(shown, LiveTable)


def test_a_live_table_outlives_its_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    master, slave = pty.openpty()
    terminal = open(slave, "w", closefd=False)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    with display(store, show=True) as shown:
        assert isinstance(shown, LiveTable)
        os.close(master)
        shown.note("stopping")
        shown._live.refresh()
    monkeypatch.undo()
    with pytest.raises(OSError):
        terminal.close()
    os.close(slave)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("end", [">/dev/full 2>&1", "2>&1 | true", ">&- 2>&-"])
def test_workers_and_drivers_go_on_without_output(folder: Path, tmp_path: Path, end: str) -> None:
    """Real processes: a run with Ray's workers, and a study with two drivers."""
    program = f"{sys.executable} -c 'from rayfbnn.cli import main; main()'"
    study, run = tmp_path / "study", tmp_path / "run.zarr"
    rest = f"{end}; exit ${{PIPESTATUS[0]}}"
    for command, code in (
        (f"run {folder}/run.toml {run} --workers 2", 0),
        (f"study create {study} {folder}/run.toml --seeds 2 --set phase.2.iterations=400 --looks 1", 0),
        (f"study run {study} --workers 2", 3),
    ):
        ended = subprocess.run(f"{program} {command} {rest}", shell=True, executable="/bin/bash", timeout=300)
        assert ended.returncode == code, command
    assert Store.open(run).committed_draws == 10
    assert Study.open(study).is_complete


@pytest.mark.parametrize("error", [OSError(28, NO_SPACE), OSError(122, "Disk quota exceeded")])
def test_a_stream_without_space_has_lost_what_it_was_given(error: OSError) -> None:
    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    stream = LastingStream(cast(TextIO, Failing()))
    assert stream.write("text") == 4
    assert stream.lost == error.strerror


@pytest.mark.parametrize("name", ["größe", "высота", "x\udcff"])
def test_an_ascii_locale_escapes_names_that_it_lacks(name: str) -> None:
    code = (
        "import sys; from rayfbnn.output.printing import *; guard_streams(); answer(sys.argv[1]); say('ok')"
    )
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "ascii",
        "PYTHONCOERCECLOCALE": "0",
    }
    written = subprocess.run(
        [sys.executable, "-c", code.replace("sys.argv[1]", ascii(name))], env=environment, capture_output=True
    )
    assert (written.returncode, written.stderr) == (0, b"ok\n")
    assert written.stdout == name.encode("ascii", "backslashreplace") + b"\n"


def test_a_column_of_other_letters_is_named_on_the_shell_of_an_ascii_locale(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    text = (tmp_path / "train.csv").read_text().replace("y", "höhe", 1)
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    mangled = os.fsdecode('data.targets=["höhe"]'.encode()).encode().decode("ascii", "surrogateescape")
    out = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    arguments = ("show", tmp_path / "run.toml", "--set", mangled)
    assert run_forked(*arguments, stdout=out, stderr=out) == 0
    assert "höhe" in (tmp_path / "out").read_text()


def test_everything_is_printed_in_one_place() -> None:
    """No other file prints or knows the standard streams.

    Exceptions are signals before the program is imported, and the width of lines.
    """
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path in (Path(printing.__file__), PACKAGE / "run" / "signals.py", PACKAGE / "output" / "lines.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.unparse(node) if isinstance(node, ast.Call | ast.Attribute) else ""
            if text.startswith(("print(", "os.write(2", "typer.echo(")) or text in (
                "sys.stdout",
                "sys.stderr",
            ):
                wrong.append(f"{path.relative_to(PACKAGE)}: {text}")
    assert wrong == []


def test_a_run_goes_on_when_its_log_is_on_a_full_disk(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_opened", lambda file: open("/dev/full", "a", buffering=1))
    api.sample(small_spec(tmp_path), tmp_path / "new.zarr", workers=0, progress=False, log_format="json")
    assert Store.open(tmp_path / "new.zarr").committed_draws == 10
    assert f"cannot write the log any more: [Errno 28] {NO_SPACE}; the run continues" in caplog.text
