"""The program `rayfbnn`: makes commands from the verbs in Python, and turns errors into exit codes.

A command has the parameters and the help of its verb. Both are read from the source files, because importing
the verbs would also import NumPy and pandas, which takes too long for help. The shell shows the paragraphs
before the first section of a docstring. For a parameter it shows the sentences before "From Python". "See
`sample`." stands for the text of `sample`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import dedent
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import typer
import typer.core

from rayfbnn import __version__
from rayfbnn.errors import NO_SPACE, ConfigError, RayFBNNError, without_credentials
from rayfbnn.output.printing import answer, guard_streams, say, say_warnings
from rayfbnn.run.signals import START_AGAIN, code_of_stopped, interrupt_on_signal

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


# A command, made from a verb.

Command: TypeAlias = Callable[..., None]


def command(
    function: Command,
    *,
    verb: str = "",
    fields_of: str = "",
    group: typer.Typer = app,
) -> Command:
    """Register a command; its RayFBNNErrors become a message on standard error and an exit code.

    The command has the parameters of its verb that a shell can give, and those of the function. Parameters of
    the function replace those of the verb. The help has the docstring of the verb, and then the docstring of
    the function. The function is called with all values by name, as the verb takes them.

    verb       the name of the verb, if it differs from that of the function
    fields_of  a class whose fields are parameters too
    group      the commands of studies have names that begin with "study_"
    """
    name = function.__name__.removeprefix("study_")
    full_name = name if group is app else f"study {name}"
    files = VERBS if group is app else STUDY
    signature = inspect.signature(function, eval_str=True)
    own = {key: one for key, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    description = described(verb or name, files)
    texts, parameters = dict(description.parameters), _parameters(verb or name, files, leave_out=own)
    if fields_of:
        texts = described(fields_of, files).parameters | texts
        parameters |= _parameters(fields_of, files, leave_out=own)
    shown = {key: _with_help(own.get(key, one), texts.get(key)) for key, one in (parameters | own).items()}
    convert = {key: one.annotation.__metadata__[1:] for key, one in parameters.items() if key not in own}

    @functools.wraps(function)
    def with_exit_code(**values: Any) -> None:
        try:
            with interrupt_on_signal():
                for key, converters in convert.items():
                    for converter in converters:
                        values[key] = converter(values[key])
                function(**values)
        except RayFBNNError as exc:
            say(f"rayfbnn {full_name}: {exc}")
            raise typer.Exit(exc.exit_code) from None
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            say(f"rayfbnn {full_name}: {exc.filename or 'a file'}: no space to write it ({exc.strerror})")
            raise typer.Exit(START_AGAIN) from None
        except KeyboardInterrupt as exc:
            say(f"rayfbnn {full_name}: {exc if str(exc) else 'stopped'}")
            raise typer.Exit(code_of_stopped(name)) from None
        except MemoryError as exc:
            say(f"rayfbnn {full_name}: out of memory{f': {exc}' if str(exc) else ''}")
            raise typer.Exit(1) from None

    with_exit_code.__signature__ = inspect.Signature(list(shown.values()))  # type: ignore[attr-defined]
    with_exit_code.__annotations__ = {key: one.annotation for key, one in shown.items()}
    text = "\n\n".join(filter(None, (description.text, _paragraphs(inspect.getdoc(function) or ""))))
    return group.command(name=name, help=_without_markup(text))(with_exit_code)


def utf8(text: str) -> str:
    """Return an argument of the shell decoded as UTF-8, even if the locale is ASCII."""
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates stand for bytes that the locale cannot decode
        return os.fsencode(text).decode(errors="surrogateescape")
    return text


def _chain_numbers(text: str | None) -> list[int] | None:
    """Return the numbers in a list such as "0,2"; ConfigError for anything else."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(
            f'chains: must be numbers with commas between them, such as 0,2, got "{text}"'
        ) from None


# How the shell names the values of arguments and options.
_ARGUMENTS = {
    "spec": "RUN.TOML",
    "path": "STORE",
    "what": "RUN.TOML|STORE",
    "exact": "EXACT",
    "out": "FOLDER",
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "set": {"metavar": "KEY=VAL", "parser": utf8, "help": "Can be given several times."},
    "vary": {"metavar": "KEY=A,B,C", "parser": utf8, "help": "Can be given several times."},
    "log_format": {"metavar": "text|json"},
    "method": {"metavar": "METHOD"},
    "until": {"metavar": "ok"},
    "max_time": {"metavar": "TIME"},
    "exact": {"metavar": "STORE"},
    "input_name": {"parser": utf8},
    "variables": {"metavar": "NAME,...", "parser": utf8},
    "groups": {"metavar": "NAME,..."},
    "annealing_runs": {"metavar": "N"},
    "contributions": {"help": "It needs --out."},
}
# The types of values in the shell, by the annotations of verbs. Parameters with others are left out.
_TYPES = {
    r"\bSequence\[str \| Path\]": list[Path],
    r"\b(Path|Source|Spec)\b": Path,
    r"^Sequence\[str\]": list[str],
    r"\b(str|Literal|Decisive|LogFormat)\b|^Sequence\[int\]": str,
    r"\bint\b": int,
    r"\bfloat\b": float,
    r"\bbool\b": bool,
}


def _parameters(
    name: str, files: tuple[str, ...], *, leave_out: Iterable[str]
) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or the fields of a class, as those of a command.

    Each annotation has the type, the settings of typer, and maybe a converter to the value that the verb
    takes. Those to leave out have a place in the order and nothing else.
    """
    node = _definition(name, files)
    found: list[tuple[str, ast.expr | None, ast.expr | None, bool]]
    if isinstance(node, ast.ClassDef):
        found = [
            (ast.unparse(one.target), one.annotation, one.value, False)
            for one in node.body
            if isinstance(one, ast.AnnAssign)
        ]
    else:
        given = node.args
        defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
        found = [
            (one.arg, one.annotation, value, True) for one, value in zip(given.args, defaults, strict=True)
        ]
        found += [
            (one.arg, one.annotation, value, False)
            for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        ]
    parameters = {}
    for key, annotation, value, is_argument in found:
        if key in leave_out:
            parameters[key] = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY)
        elif annotation is not None:
            made = _parameter(key, ast.unparse(annotation), value, is_argument)
            parameters |= {} if made is None else {key: made}
    return parameters


def _parameter(
    key: str, annotation: str, value: ast.expr | None, is_argument: bool
) -> inspect.Parameter | None:
    """Return a parameter of a command, or None if a shell cannot give a value of this annotation."""
    kind: Any = next((kind for words, kind in _TYPES.items() if re.search(words, annotation)), None)
    if kind is None:
        return None
    default = inspect.Parameter.empty if value is None else ast.literal_eval(value)
    settings, names = dict(_OPTIONS.get(key, {})), list[str]()
    converters: list[Callable[[Any], Any]] = []
    if key == "decisive":
        names, settings = ["--for"], {"metavar": "predictions|all"}
    elif annotation.startswith("Sequence[int]"):
        settings, converters = {"metavar": "NUMBER,..."}, [_chain_numbers]
    elif kind is bool and default is False:
        names = [f"--{key.replace('_', '-')}"]  # and no --no-...
    if default == ():
        default, converters = (None, [lambda texts: texts or ()]) if kind == list[str] else ("", [])
    if kind is Path and isinstance(default, str):
        default = Path(default)
    form: Any
    if is_argument:
        metavar = _ARGUMENTS.get(key)
        form = typer.Argument(metavar=f"{metavar}..." if kind == list[Path] else metavar)
    else:
        form = typer.Option(*names, **settings)
    wanted = kind | None if default is None else kind
    return inspect.Parameter(
        key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[(wanted, form, *converters)],
    )


def _with_help(parameter: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Return a parameter with its help; without settings, its default decides whether it is an option."""
    kind, *settings = (
        get_args(parameter.annotation)
        if get_origin(parameter.annotation) is Annotated
        else (parameter.annotation, typer.Option())
    )
    form = copy(settings[0])  # several commands have the same
    form.help = _without_markup(" ".join(filter(None, (text, form.help))))
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, form])


# The help of the shell.

_PACKAGE = Path(__file__).parents[1]
_SECTION = re.compile(r"\n\n(\w+)\n-+\n")
_PARAMETER = re.compile(r"^(\w+(?:, \w+)*)$", re.MULTILINE)
_DEFINITION = re.compile(r"^ *(?:def|class) (\w+)", re.MULTILINE)
_SEE = re.compile(r"See `(\w+)`\.\s*")

VERBS = ("verbs/*.py", "demo.py", "selftest/selftest.py")
STUDY = ("study/study.py", "study/files.py", "study/rule.py")


@dataclass(frozen=True)
class Description:
    """A docstring as the shell shows it.

    text        paragraphs
    parameters  a paragraph for each parameter or attribute
    """

    text: str
    parameters: dict[str, str]


@cache
def described(name: str, files: tuple[str, ...] = VERBS) -> Description:
    """Return the description of the function, method or class of this name in one of the files."""
    text, *sections = _SECTION.split(docstring(name, files))
    explained = dict(zip(sections[::2], sections[1::2], strict=True))
    _, *parts = _PARAMETER.split(explained.get("Parameters") or explained.get("Attributes") or "")
    parameters = {
        parameter: _in_shell(parameter, words)
        for names, words in zip(parts[::2], parts[1::2], strict=True)
        for parameter in names.split(", ")
    }
    return Description(
        _with_options(_paragraphs(text), parameters),
        {parameter: _with_options(words, parameters) for parameter, words in parameters.items()},
    )


def docstring(name: str, files: tuple[str, ...]) -> str:
    """Return the docstring of the function, method or class of this name in one of the files."""
    return ast.get_docstring(_definition(name, files)) or ""


@cache
def _definition(name: str, files: tuple[str, ...]) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a name in one of the files: a function up to its docstring, a class up to its
    first method.
    """
    source, places = _definitions(files)
    start = places[name]
    end = source.index('"""', source.index('"""', start) + 3) + 3
    if source[start:].lstrip().startswith("class"):
        end = source.index("\n\n    def ", end)
    found = ast.parse(dedent(source[start:end])).body[-1]  # overloads come before it
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    return found


@cache
def _definitions(files: tuple[str, ...]) -> tuple[str, dict[str, int]]:
    """Return the text of the files (patterns below the package), and where it first defines each name."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for pattern in files for path in sorted(_PACKAGE.glob(pattern))
    )
    places: dict[str, int] = {}
    for definition in _DEFINITION.finditer(source):
        places.setdefault(definition[1], definition.start())
    return source, places


def _in_shell(parameter: str, words: str) -> str:
    """Return the text of a parameter without the part for Python, and with the text that it refers to."""
    words = " ".join(words.split()).partition(" From Python ")[0]
    if match := _SEE.match(words):
        elsewhere = described(match[1]).parameters[parameter]
        return " ".join(filter(None, (elsewhere, words[match.end() :])))
    return words


def _with_options(text: str, parameters: Iterable[str]) -> str:
    for name in parameters:
        text = text.replace(f"`{name}`", f"--{name.replace('_', '-')}")
    return text


def _without_markup(text: str) -> str:
    """Return a text of help that shows square brackets, as in [data]; in boxes they are markup."""
    return re.sub(r"\[(?=[a-z#/@])", r"\\[", text) if _has_boxes else text


def _paragraphs(text: str) -> str:
    """Return a text with one line for each paragraph, because typer keeps the line breaks of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
