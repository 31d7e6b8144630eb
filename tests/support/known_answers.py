"""Known answers of the counter-based generator, from the authors' test vectors."""

from __future__ import annotations

ONES = 0xFFFFFFFF
# Salmon and others, Random123, kat_vectors: philox4x32 with 10 rounds; counter, key, result.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
# From the same file: philox4x32 with 7 rounds.
KNOWN_ANSWERS_OF_7_ROUNDS = [
    ([0] * 4, [0] * 2, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    ([ONES] * 4, [ONES] * 2, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
]
