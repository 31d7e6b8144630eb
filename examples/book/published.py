"""Numbers that the book prints (Neal 1996), and those of his program FBM on the same cases as ours.

Measures are those of a row: squared and absolute error, error rate, minus log probability.
"""

from __future__ import annotations

Numbers = dict[str, dict[str, float]]


def _errors(table: dict[str, tuple[float, ...]], names: tuple[str, ...]) -> Numbers:
    return {row: dict(zip(names, values, strict=False)) for row, values in table.items()}


def _led(values: dict[str, tuple[float, float, float]]) -> Numbers:
    """Return error rates in percent of the three training sets, by inputs, units and ARD."""
    return {
        f"4.6-{number}-{name}": {"error_rate": percent / 100}
        for name, of_sets in values.items()
        for number, percent in enumerate(of_sets, start=1)
    }


BOOK: Numbers = {
    "3.6-L8000": {"squared_error": 0.00557},
    "3.9-metropolis-0.1": {"accepted": 0.76},
    "3.9-metropolis-0.3": {"accepted": 0.39},
    "3.9-metropolis-0.9": {"accepted": 0.04},
    "3.9-metropolis-2.7": {"accepted": 0.0004},
    "3.9-langevin-0.1": {"accepted": 0.99},
    "3.9-langevin-0.3": {"accepted": 0.81},
    "3.9-langevin-0.9": {"accepted": 0.008},
    "3.9-langevin-2.7": {"accepted": 0.0},
    "3.9-hybrid-0.3": {"range": 6},
    **_led(
        {
            "7-0-no": (28.2, 29.1, 28.7),
            "7-0-ard": (28.9, 29.0, 28.5),
            "7-8-no": (28.3, 29.1, 29.1),
            "7-8-ard": (28.4, 29.6, 29.5),
            "24-0-no": (37.8, 38.2, 37.2),
            "24-0-ard": (29.8, 31.2, 31.0),
            "24-8-no": (37.8, 37.6, 33.1),
            "24-8-ard": (30.4, 31.7, 33.0),
        }
    ),
    "4.4-6": {"squared_error": 0.00905},
    "4.4-8": {"squared_error": 0.01155},
    "4.8-none": {"squared_error": 0.00597},
    "4.8-one": {"squared_error": 0.00563},
    "4.8-two": {"squared_error": 0.00549},
    "4.8-only-two-inputs": {"squared_error": 0.00547},
    **_errors(
        {
            "4.10-none": (28.9, 3.36, 2.888),
            "4.10-8-gaussian": (13.7, 2.32, 2.428),
            "4.10-8-cauchy": (13.1, 2.26, 2.391),
            "4.10-14-cauchy": (13.5, 2.29, 2.407),
            "4.10-6+6": (12.4, 2.15, 2.303),
            "4.11-none": (25.3, 3.20),
            "4.11-6+6": (6.5, 1.78),
        },
        ("squared_error", "absolute_error", "minus_log_probability"),
    ),
    **_errors(
        {
            "4.13-0-no": (0.42, 0.17, 0.937),
            "4.13-0-ard": (0.49, 0.17, 0.916),
            "4.13-6-no": (0.28, 0.14, 0.804),
            "4.13-6-ard": (0.265, 0.14, 0.766),
            "4.13-6-vaguer": (0.33, 0.18, 0.873),
            "4.13-12-ard": (0.25, 0.14, 0.745),
        },
        ("error_rate", "merged_error_rate", "minus_log_probability"),
    ),
}
"""Where the book prints two runs of a network (4.13, six units), this is their mean."""

FBM: Numbers = {
    "3.6-L8000": {"squared_error": 0.00544},
    **_led({"7-0-no": (28.6, 28.3, 27.2), "24-0-no": (36.4, 37.3, 37.0), "24-0-ard": (29.3, 31.0, 30.0)}),
    "4.8-none": {"squared_error": 0.00604},
    "4.8-one": {"squared_error": 0.00586},
    "4.8-two": {"squared_error": 0.00561},
    **_errors(
        {
            "4.10-none": (27.67, 3.308, 2.887),
            "4.10-8-cauchy": (14.27, 2.353, 2.468),
            "4.10-6+6": (13.33, 2.242, 2.410),
            "4.11-none": (25.57, 3.213, 2.850),
        },
        ("squared_error", "absolute_error", "minus_log_probability"),
    ),
    **_errors(
        {
            "4.13-0-no": (0.417, 0.167, 0.945),
            "4.13-0-ard": (0.479, 0.177, 0.922),
            "4.13-6-no": (0.323, 0.146, 0.775),
            "4.13-6-ard": (0.281, 0.135, 0.773),
            "4.13-12-ard": (0.229, 0.135, 0.798),
        },
        ("error_rate", "merged_error_rate", "minus_log_probability"),
    ),
}
"""Run by us, mostly shorter than the book's; the cases are the same as ours."""
