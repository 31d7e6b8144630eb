"""The colours of chains can be told apart by every reader, also on a light and on a dark page."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.pictures.figures import CHAIN_COLOURS, chain_style
from rayfbnn.reporting.page import _COLOURS

# Machado, Oliveira and Fernandes (2009), "A physiologically-based model for simulation of color vision
# deficiency": red, green and blue as seen without one kind of cones.
VISIONS = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
LEAST_DISTANCE = 14.0  # in CIELAB; 2.3 is just noticeable side by side


def linear(colour: str) -> Array:
    """Return red, green and blue light of a hexadecimal colour."""
    share = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: Array) -> Array:
    xyz = TO_XYZ @ np.clip(vision @ linear(colour), 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(colours: list[str], vision: Array) -> float:
    places = [lab(colour, vision) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2))


def of_page(scheme: int) -> list[str]:
    """The chains' colours in the style of a page: 0 for light, 1 for dark."""
    style = (files("rayfbnn.reporting") / "templates" / "style.css").read_text()
    variables = [_COLOURS[colour.lower()][4:-1] for colour in CHAIN_COLOURS]
    return [re.findall(rf"{name}: (#[0-9a-f]{{6}});", style)[scheme] for name in variables]


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("where", ["pictures", "light page", "dark page"])
def test_twelve_colours_differ_for_every_reader(where: str, vision: str) -> None:
    colours = list(CHAIN_COLOURS) if where == "pictures" else of_page(int(where == "dark page"))
    assert len(set(colours)) == 12
    assert least_distance(colours, VISIONS[vision]) > LEAST_DISTANCE


def test_orange_and_a_dark_yellow_are_the_same_without_red_cones() -> None:
    """The measure finds what it should."""
    assert least_distance(["#E69F00", "#B8A900"], VISIONS["no red"]) < LEAST_DISTANCE


def test_colours_are_visible_on_their_background() -> None:
    for colours, background in ((of_page(0), "#ffffff"), (of_page(1), "#14181c")):
        for colour in colours:
            light, dark = sorted([TO_XYZ[1] @ linear(colour), TO_XYZ[1] @ linear(background)], reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 1.9


def test_chains_of_one_colour_have_other_dashes() -> None:
    styles = [chain_style(chain) for chain in range(36)]
    assert len({(style["color"], style["ls"]) for style in styles}) == 36
    assert chain_style(36) == styles[0]
