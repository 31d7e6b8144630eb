"""The table of a comparison, as text, JSON and CSV."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayfbnn.answers.comparing.comparison import Compared
from rayfbnn.answers.wording import known
from rayfbnn.numerals import plain
from rayfbnn.output import tables
from rayfbnn.output.lines import table_text

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "log_probability": "log probability",
    "log_probability_difference": "its difference",
    "error_rate": "error rate",
    "error_rate_difference": "its difference",
    "squared_error": "squared error",
    "squared_error_difference": "its difference",
    "rmse": "RMSE",
    "expected_error_rate": "expected error rate",
    "ece": "ECE",
    "coverage": "10-90 % band",
    "crps": "CRPS",
    "total_variation": "total variation",
    "kl": "KL",
    "agreement": "agreement",
    "w2": "W2/sd",
    "mean_difference": "means/sd",
    "sd_ratio": "sd ratio",
    "log_sigma": "log sigma",
    "log_evidence": "log evidence",
    "seconds": "seconds",
    "gradients": "gradients",
}
"""The names of the values of a row, in order, with their headings in text."""

_MOST_DECIMALS = 7
_BLOCKS = {
    "test cases (differences are from the reference, case by case)": (
        "log_probability",
        "log_probability_difference",
        "error_rate",
        "error_rate_difference",
        "squared_error",
        "squared_error_difference",
        "rmse",
    ),
    "calibration": ("expected_error_rate", "ece", "coverage", "crps"),
    "distance from the reference": (
        "total_variation",
        "kl",
        "agreement",
        "w2",
        "mean_difference",
        "sd_ratio",
    ),
    "hyperparameters, evidence and cost": ("log_sigma", "log_evidence", "seconds", "gradients"),
}


@dataclass(frozen=True)
class Comparison:
    """A table that compares methods with a reference.

    Attributes
    ----------
    reference
        Name of the method, or path of the store, with the draws that count as exact.
    rows
        The comparisons by method, in the requested order. The last row, "halves of " and the reference,
        compares one half of the reference's chains with the other half. Distances below the ones in this row
        are not meaningful.
    reasons
        Sentences saying why the reference may not have converged; empty if it passes `diagnose`.
    """

    reference: str
    rows: dict[str, Compared]
    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the reference passes `diagnose`; distances from it can then be trusted."""
        return not self.reasons

    @property
    def floor(self) -> Compared:
        """The last row: one half of the reference compared with the other half."""
        return self.rows[list(self.rows)[-1]]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each method with the names of `COLUMNS` and their standard errors, <name>_se.

        Each free sigma has a column log_sigma[<name>]: the difference of the mean of its log from that of the
        reference, in standard deviations of the reference. Columns without any value are left out.
        """
        import pandas as pd

        records = [
            {"method": name}
            | {key: row.values[key] for column in COLUMNS for key in _keys(column) if key in row.values}
            | {f"log_sigma[{sigma}]": value for sigma, value in row.log_sigma.items()}
            for name, row in self.rows.items()
        ]
        names = [key for column in COLUMNS for key in _keys(column)]
        frame = pd.DataFrame(records)
        ordered = ["method", *(name for name in names if name in frame)]
        return frame[ordered + [name for name in frame if name not in ordered]]

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null, and values that do not apply are absent."""
        rows = [
            {"method": name}
            | {key: known(value) for key, value in row.values.items()}
            | {"log_sigma": {sigma: known(value) for sigma, value in row.log_sigma.items()}}
            for name, row in self.rows.items()
        ]
        document = {
            "reference": self.reference,
            "ok": self.ok,
            "reasons": list(self.reasons),
            "rows": rows,
        }
        return json.dumps(document)

    def to_text(self) -> str:
        """Return the table in blocks of lines of at most about 100 characters."""
        lines: list[str] = []
        for title, columns in _BLOCKS.items():
            shown = [name for name in columns if any(_cell(row, name) for row in self.rows.values())]
            if not shown:
                continue
            rows = [
                [method, *(_cell(row, name) or "-" for name in shown)] for method, row in self.rows.items()
            ]
            lines += ["", title] if lines else [title]
            lines.append(table_text(["", *(COLUMNS[name] for name in shown)], rows))
        lines += ["", f"reference: {self.reference}; distances below that of its halves are not meaningful"]
        lines += [f"the reference may not have converged: {reason}" for reason in self.reasons]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        frame = self.to_frame()
        body = tables.table(tuple(frame.columns), frame.to_numpy().tolist())
        return body + tables.items(self.reasons)


def _keys(column: str) -> tuple[str, str]:
    return column, f"{column}_se"


def _cell(row: Compared, name: str) -> str:
    """Return a value with its standard error as text, "" if the row lacks it."""
    if name == "log_sigma":
        return _largest(row.log_sigma)
    value, error = row.values.get(name, math.nan), row.values.get(f"{name}_se", math.nan)
    if math.isnan(value):
        return ""
    if name in ("seconds", "gradients"):
        return f"{value:,.0f}" if value >= 10 else plain(value, 2)
    if not error > 0:
        return plain(value, 4)
    decimals = max(1 - math.floor(math.log10(error)), 0)  # two digits of the error
    if decimals > _MOST_DECIMALS:
        return f"{value:.2e} +- {error:.1e}"
    return f"{value:,.{decimals}f} +- {error:,.{decimals}f}"


def _largest(log_sigma: dict[str, float]) -> str:
    """Return the difference that is largest in size, with its sigma."""
    if not log_sigma:
        return ""
    name = max(log_sigma, key=lambda name: abs(log_sigma[name]))
    if log_sigma[name] == 0:  # the reference compared with itself
        return "0"
    return f"{log_sigma[name]:+.2f} ({name.removeprefix('sigma_')})"
