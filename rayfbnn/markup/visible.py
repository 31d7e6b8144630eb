"""Makes control characters visible in text from files, which a terminal or a log would obey otherwise."""

from __future__ import annotations

import re

# Control characters of ASCII and Latin-1, marks that turn the direction of text, and separators of lines.
_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_IN_NAMES = re.compile(f"[{_CONTROLS}]")
_IN_TEXT = re.compile(f"(?![\t\n])[{_CONTROLS}]")
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")  # a colour, or bold


def visible(text: str) -> str:
    r"""Return the text with each control character as an escape such as \x1b; its lines and tabs stay."""
    return _IN_TEXT.sub(_escape, text)


def visible_name(name: str) -> str:
    """Return the name as `visible` does, on one line: breaks of lines and tabs become escapes too."""
    return _IN_NAMES.sub(_escape, name)


def visible_but_styles(text: str) -> str:
    """Return the text as `visible` does, but with the colours of help and tracebacks."""
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(_STYLE.split(text)))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: r"\t", 10: r"\n", 13: r"\r"}.get(code) or (
        rf"\x{code:02x}" if code < 256 else rf"\u{code:04x}"
    )
