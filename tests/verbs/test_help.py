"""The shell's help is that of the docstrings in Python, and complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import Study, api, cli
from rayfbnn.cli.program import STUDY, VERBS, described, docstring
from rayfbnn.demo import demo
from rayfbnn.selftest.selftest import selftest
from rayfbnn.study import Rule

OBJECTS = ("function_values", "load", "open", "to_datatree")  # what these give is not for a shell
NAMES_IN_SHELL = {"sample_or_resume": "run"}  # rayfbnn.run is a folder of the package
VERB_NAMES = sorted(name for name in api.__all__)
GROUP: Any = typer.main.get_group(cli.app)
COMMANDS = {name: command for name, command in GROUP.commands.items() if name != "study"}
STUDY_COMMANDS = GROUP.commands["study"].commands
PARAMETERS = [
    pytest.param(parameter, id=f"{command.name} {parameter.name}")
    for command in (*COMMANDS.values(), *STUDY_COMMANDS.values())
    for parameter in command.params
]


def words(text: str | None) -> str:
    """The text without line breaks."""
    return " ".join((text or "").split())


@pytest.mark.parametrize("verb", [*(getattr(api, name) for name in VERB_NAMES), demo, selftest])
def test_the_docstring_of_a_verb_is_read_from_its_source(verb: Any) -> None:
    assert docstring(verb.__name__, VERBS) == inspect.getdoc(verb)


@pytest.mark.parametrize("name", STUDY_COMMANDS)
def test_the_docstring_of_a_study_s_method_is_read_from_its_source(name: str) -> None:
    assert docstring(name, STUDY) == inspect.getdoc(getattr(Study, name))
    assert docstring("Rule", STUDY) == inspect.getdoc(Rule)


def test_every_verb_but_those_that_give_objects_is_a_command() -> None:
    verbs = {NAMES_IN_SHELL.get(name, name) for name in VERB_NAMES if name not in OBJECTS}
    assert set(COMMANDS) == verbs | {"demo", "selftest"}


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_every_parameter_of_a_command_has_help(parameter: Any) -> None:
    assert parameter.help.endswith(".")
    assert not any(other in parameter.help for other in ("From Python", "See `"))


@pytest.mark.parametrize("width", [100, 60])  # with boxes, where square brackets are markup, and without
def test_help_shows_square_brackets_and_nothing_of_python(width: int) -> None:
    """In a process of its own, because the width is looked at once."""
    code = """
from typer.testing import CliRunner
from rayfbnn.cli import app
from tests.verbs.test_help import COMMANDS, STUDY_COMMANDS
for path in (*([name] for name in COMMANDS), *(["study", name] for name in STUDY_COMMANDS)):
    print(CliRunner().invoke(app, [*path, "--help"]).output)
"""
    environment = {**os.environ, "COLUMNS": str(width), "TERMINAL_WIDTH": str(width)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    texts = [command.help for command in (*COMMANDS.values(), *STUDY_COMMANDS.values())]
    texts += [parameter.values[0].help for parameter in PARAMETERS]
    brackets = set(re.findall(r"\[[^\]\s]+\]", "".join(filter(None, texts)).replace("\\[", "[")))
    assert "[data]" in brackets and {text for text in brackets if text not in done.stdout} == set()
    for never in ("typing.", "object at", "Annotated", "\\["):
        assert never not in done.stdout


@pytest.mark.parametrize("name", VERB_NAMES)
def test_every_parameter_of_a_verb_is_explained(name: str) -> None:
    assert set(described(name).parameters) == set(inspect.signature(getattr(api, name)).parameters)


def test_a_parameter_has_the_text_that_it_refers_to() -> None:
    assert "See `sample`" in docstring("resume", VERBS)
    assert described("resume").parameters["workers"] == described("sample").parameters["workers"] != ""
    fixed = described("show").parameters["set"]
    assert fixed == described("sample").parameters["set"] + " The configuration of a store is fixed."


def test_help_names_options_and_not_parameters() -> None:
    assert "a run with `until`" in words(docstring("sample", VERBS))
    assert "a run with --until" in described("sample").parameters["max_time"]


def test_what_a_command_adds_follows_the_docstring_of_its_verb() -> None:
    paragraphs = COMMANDS["verify"].help.split("\n\n")
    assert paragraphs[0] == "Check every file of a store against its checksum and commit record."
    assert paragraphs[-1].startswith("The exit code is 1 if a file cannot be read")


def test_help_in_the_shell_is_not_broken_where_the_source_is() -> None:
    for command in (*COMMANDS.values(), *STUDY_COMMANDS.values()):
        assert all(command.help and line == words(line) for line in (command.help or "").split("\n\n"))


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"rayfbnn {rayfbnn.__version__}\n")


def test_the_shell_can_complete_commands() -> None:
    environment = {"_RAYFBNN_COMPLETE": "complete_bash", "COMP_WORDS": "rayfbnn dia", "COMP_CWORD": "1"}
    result = CliRunner().invoke(cli.app, [], prog_name="rayfbnn", env=environment)
    assert result.output.split() == ["diagnose"]
