"""The program `rayfbnn`: its commands register here, and errors become messages with exit codes."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rayfbnn import __version__
from rayfbnn.describe import results
from rayfbnn.errors import NO_SPACE, RayFBNNError
from rayfbnn.output.printing import answer, guard_streams, say, tell
from rayfbnn.run.signals import START_AGAIN, code_of_stopped, interrupt_on_signal

if TYPE_CHECKING:
    from rayfbnn.run.running import RunSummary

NOT_CONVERGED = 3

app = typer.Typer(
    name="rayfbnn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # anything but a RayFBNNError is a bug, and shows its plain traceback
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        answer(f"rayfbnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version.")
    ] = False,
) -> None:
    """Sample the posterior of Bayesian neural networks: many chains, resumable to the bit."""


Command: TypeAlias = Callable[..., None]


def command(function: Command) -> Command:
    """Register a command; its RayFBNNErrors become a message on standard error and an exit code."""
    return command_of(app)(function)


def command_of(group: typer.Typer) -> Callable[[Command], Command]:
    """Return what registers a command of a group of commands, as `command` does those of the program."""
    return partial(_register, group)


def _register(group: typer.Typer, function: Command) -> Command:
    name = function.__name__ if group is app else f"study {function.__name__}"

    @functools.wraps(function)
    def with_exit_code(*args: Any, **kwargs: Any) -> None:
        try:
            with interrupt_on_signal():
                function(*args, **kwargs)
        except RayFBNNError as exc:
            say(f"rayfbnn {name}: {exc}")
            raise typer.Exit(exc.exit_code) from None
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            say(f"rayfbnn {name}: {exc.filename or 'a file'}: no space to write it ({exc.strerror})")
            raise typer.Exit(START_AGAIN) from None
        except KeyboardInterrupt as exc:
            say(f"rayfbnn {name}: {exc if str(exc) else 'stopped'}")
            raise typer.Exit(code_of_stopped(function.__name__)) from None
        except MemoryError as exc:
            say(f"rayfbnn {name}: out of memory: {exc or 'no more is left'}")
            raise typer.Exit(1) from None

    return group.command(help=_paragraphs(inspect.getdoc(function) or ""))(with_exit_code)


def _paragraphs(text: str) -> str:
    """Return a text with one line for each paragraph; typer would keep the line breaks of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def print_run(summary: RunSummary, as_json: bool) -> None:
    """Print the summary of a run, as text or as one JSON object."""
    tell(json.dumps(asdict(summary)) if as_json else results.run_text(summary))


def main() -> None:
    """Run the program `rayfbnn` with the arguments of the shell."""
    standard_output = guard_streams()
    try:
        app()
    except SystemExit:
        if standard_output.lost is None:
            raise
        say(f"rayfbnn: the answer is lost: standard output cannot be written: {standard_output.lost}")
        raise SystemExit(START_AGAIN) from None
