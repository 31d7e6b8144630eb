"""The version of this package and the number of its results; runs resume only where both are the same."""

__version__ = "0.1.0"

RESULTS = 1
"""Number of the draws that this code computes: a change that alters a draw of any run raises it.

`tests/golden/test_results.py` fails if draws change and the number does not. Stores from before the number
was recorded have the results 1.
"""


def difference(version: str, results: int) -> str:
    """Return how the maker of a store differs from this package, or "" if both compute the same draws."""
    if version != __version__:
        return f"was made by rayfbnn {version}, but this is {__version__}"
    if results != RESULTS:
        return f"was made by rayfbnn {version} with results {results}, but this has results {RESULTS}"
    return ""
