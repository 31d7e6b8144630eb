"""The colours of pictures, which can be told apart with any colour vision."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette without its yellow, which is hard to see on white; black is for text and reference
# lines.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#666666"
# Found by a search: far from those above, from each other and from black, with any colour vision.
VIOLET, RUST, ULTRAMARINE, TEAL, BROWN = "#330055", "#994433", "#0000CC", "#004444", "#551100"
CHAIN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, VIOLET, RUST, ULTRAMARINE, TEAL, BROWN)
_DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)))


def series_colour(number: int) -> str:
    """Return the colour of a chain, a label or another series; every twelfth has the same."""
    return CHAIN_COLOURS[number % len(CHAIN_COLOURS)]


def chain_style(chain: int) -> dict[str, Any]:
    """Return the colour and the dashes of a chain's lines, which are the same for every 36th chain."""
    return {
        "color": series_colour(chain),
        "ls": _DASHES[chain // len(CHAIN_COLOURS) % len(_DASHES)],
    }
