"""Estimators for scikit-learn; docs/estimators.md introduces them.

BayesianNetworkRegressor   numbers, with standard deviations, quantiles and samples of new targets
BayesianNetworkClassifier  labels, with their probabilities

They need scikit-learn 1.6 or later, which `pip install rayfbnn[sklearn]` brings.
"""

try:
    from sklearn.utils.validation import validate_data as _validate_data  # noqa: F401
except ImportError as exc:
    raise ImportError(
        "rayfbnn.sklearn: scikit-learn 1.6 or later is not installed; install rayfbnn[sklearn]"
    ) from exc

from rayfbnn.sklearn.estimators import BayesianNetworkClassifier, BayesianNetworkRegressor

__all__ = ["BayesianNetworkClassifier", "BayesianNetworkRegressor"]
