"""Instructions of compiled kernels, read from their machine code by nvdisasm, which needs no device."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")


@cache
def disassembler() -> Path | None:
    """The program of the package nvidia-cuda-nvdisasm, or None if that is not installed."""
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else package.submodule_search_locations or []
    return next((path for folder in folders for path in Path(folder).glob("*/bin/nvdisasm")), None)


def innermost_loops(code: bytes) -> list[list[str]]:
    """The instructions of each loop that has no other loop inside, in the order of the code."""
    instructions, places = _instructions(code)
    loops = [
        (places[branch[1]], end)
        for end, text in enumerate(instructions)
        if (branch := _BRANCH.search(text)) and places.get(branch[1], end) < end
    ]
    return [
        instructions[begin : end + 1]
        for begin, end in loops
        if not any(begin <= other < last <= end for other, last in loops if (other, last) != (begin, end))
    ]


def _instructions(code: bytes) -> tuple[list[str], dict[str, int]]:
    """All instructions, and the number of the instruction that each label stands before."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [str(disassembler()), "-c", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions: list[str] = []
    places: dict[str, int] = {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            places[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
    return instructions, places
