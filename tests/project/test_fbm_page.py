"""docs/fbm.md names every choice of a configuration, and no verb that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rayfbnn import cli
from rayfbnn.model.architecture import ACTIVATIONS, LAYER_ACTIVATIONS, PRIOR_ACTIVATIONS
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.spec.messages import OPERATION_NAMES

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
