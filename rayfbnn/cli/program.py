"""The program `rayfbnn`: commands register here, and errors become messages with exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin

import typer
import typer.core

from rayfbnn import __version__
from rayfbnn.cli.descriptions import VERBS, described
from rayfbnn.describe import verb_results
from rayfbnn.errors import NO_SPACE, RayFBNNError, without_credentials
from rayfbnn.output.printing import answer, guard_streams, say, say_warnings, tell
from rayfbnn.run.signals import START_AGAIN, code_of_stopped, interrupt_on_signal

if TYPE_CHECKING:
    from rayfbnn.run.running import RunSummary

NOT_CONVERGED = 3

_LEAST_FOR_BOXES = 72  # columns; in fewer, boxes of help would cut names of options


_has_boxes = get_terminal_size().columns >= _LEAST_FOR_BOXES


class _Program(typer.core.TyperGroup):
    """The commands. Messages on wrong arguments do not repeat credentials."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _hidden_credentials():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _hidden_credentials():
            return super().invoke(ctx)


@contextmanager
def _hidden_credentials() -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # typer's error of usage; its class depends on typer's version
        if isinstance(message := getattr(exc, "message", None), str):
            exc.message = without_credentials(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="rayfbnn",
    cls=_Program,
    rich_markup_mode="rich" if _has_boxes else None,
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Sample the posterior of Bayesian neural networks: many chains, resumable to the bit."""


Command: TypeAlias = Callable[..., None]


def command(
    function: Command,
    *,
    group: typer.Typer = app,
    files: tuple[str, ...] = VERBS,
    docstrings: tuple[str, ...] = (),
) -> Command:
    """Register a command; its RayFBNNErrors become a message on standard error and an exit code.

    The help has the docstring of the verb of the same name, and then the docstring of the command.

    files       the files that define the verb
    docstrings  names of the docstrings, if the verb has another name or other docstrings describe parameters
    """
    name = function.__name__ if group is app else f"study {function.__name__}"
    first, *others = (described(one, files) for one in docstrings or (function.__name__,))
    parameters = first.parameters | {name: text for one in others for name, text in one.parameters.items()}
    added = _paragraphs(inspect.getdoc(function) or "")

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
            say(f"rayfbnn {name}: out of memory{f': {exc}' if str(exc) else ''}")
            raise typer.Exit(1) from None

    with_exit_code.__signature__ = _with_help(function, parameters)  # type: ignore[attr-defined]
    text = "\n\n".join(filter(None, (first.text, added)))
    return group.command(help=_without_markup(text))(with_exit_code)


def _with_help(function: Command, parameters: Mapping[str, str]) -> inspect.Signature:
    """Return the signature of a command with the help of its parameters."""
    signature = inspect.signature(function, eval_str=True)
    described_parameters = []
    for parameter in signature.parameters.values():
        kind, settings = _kind_and_settings(parameter)
        text = " ".join(filter(None, (parameters.get(parameter.name), settings.help)))
        settings.help = _without_markup(text)
        described_parameters.append(parameter.replace(annotation=Annotated[kind, settings]))
    return signature.replace(parameters=described_parameters)


def _kind_and_settings(parameter: inspect.Parameter) -> tuple[Any, Any]:
    """Return the type and a copy of the settings of a parameter; by default its default decides them."""
    if get_origin(parameter.annotation) is Annotated:
        kind, settings = get_args(parameter.annotation)
        return kind, copy(settings)  # several commands have the same
    is_option = parameter.default is not parameter.empty
    return parameter.annotation, typer.Option() if is_option else typer.Argument()


def _without_markup(text: str) -> str:
    """Return a text of help that shows square brackets, as in [data]; in boxes they are markup."""
    return re.sub(r"\[(?=[a-z#/@])", r"\\[", text) if _has_boxes else text


def _paragraphs(text: str) -> str:
    """Return a text with one line for each paragraph, because typer keeps the line breaks of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def print_run(summary: RunSummary, as_json: bool) -> None:
    """Print the summary of a run, as text or as one JSON object."""
    tell(json.dumps(asdict(summary)) if as_json else verb_results.run_text(summary), as_is=as_json)


def main() -> None:
    """Run the program `rayfbnn` with the arguments of the shell."""
    standard_output = guard_streams()
    say_warnings()
    try:
        app()
    except SystemExit:
        if standard_output.lost is None:
            raise
        say(f"rayfbnn: the answer is lost: standard output cannot be written: {standard_output.lost}")
        raise SystemExit(START_AGAIN) from None
