"""The closed forms of examples/prior_functions/gaussian_process.py, which belongs to no package."""

from __future__ import annotations

import runpy

from tests.support.pages import ROOT

_NAMES = runpy.run_path(str(ROOT / "examples" / "prior_functions" / "gaussian_process.py"))
expected_products = _NAMES["expected_products"]
limit_covariance = _NAMES["limit_covariance"]
