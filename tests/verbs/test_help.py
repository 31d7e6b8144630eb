"""The shell's help describes each parameter in the same words as `help()` in Python."""

from __future__ import annotations

import inspect

import pytest
import typer.main
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli

OBJECTS = ("function_values", "load", "open", "to_datatree")  # what these give is not for a shell
IN_SHELL = [name for name in api.__all__ if name not in OBJECTS]
IN_SHELL_ALONE = ("as_json", "help", "watch", "every")
NAMES_IN_SHELL = {"sample_or_resume": "run"}  # rayfbnn.run is a folder of the package
SHELL = {command.name: command for command in typer.main.get_group(cli.app).commands.values()}
SHELL |= {verb: SHELL[name] for verb, name in NAMES_IN_SHELL.items()}


def words(text: str | None) -> str:
    """The text without line breaks."""
    return " ".join((text or "").split())


@pytest.mark.parametrize("verb", IN_SHELL)
def test_a_verb_begins_with_the_same_sentence_in_python_and_in_the_shell(verb: str) -> None:
    in_python = inspect.getdoc(getattr(api, verb))
    assert in_python is not None
    first, *_ = in_python.splitlines()
    assert words(SHELL[verb].help).startswith(first)


@pytest.mark.parametrize("verb", IN_SHELL)
def test_an_option_has_the_same_words_in_python_and_in_the_shell(verb: str) -> None:
    """The shell may add that an option can be repeated, which Python shows by its list."""
    in_python = words(inspect.getdoc(getattr(api, verb)))
    options = [parameter for parameter in SHELL[verb].params if parameter.param_type_name == "option"]
    for option in options:
        if option.name in IN_SHELL_ALONE:
            continue
        sentence, *_ = words(option.help).partition(". ")
        assert f"{option.name} {sentence.removesuffix('.')}" in in_python, option.name


@pytest.mark.parametrize("verb", api.__all__)
def test_every_parameter_of_a_verb_is_explained(verb: str) -> None:
    function = getattr(api, verb)
    _, _, explained = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")
    names = [line for line in explained.splitlines() if line and not line.startswith(" ")]
    assert [name for name in inspect.signature(function).parameters if name not in names] == []


def test_help_in_the_shell_is_not_broken_where_the_source_is() -> None:
    for command in SHELL.values():
        assert all(command.help and line == words(line) for line in (command.help or "").split("\n\n"))


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"rayfbnn {rayfbnn.__version__}\n")


def test_the_shell_can_complete_commands() -> None:
    environment = {"_RAYFBNN_COMPLETE": "complete_bash", "COMP_WORDS": "rayfbnn dia", "COMP_CWORD": "1"}
    result = CliRunner().invoke(cli.app, [], prog_name="rayfbnn", env=environment)
    assert result.output.split() == ["diagnose"]
