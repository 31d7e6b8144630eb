"""The score of predictions that ignore the inputs; an approximation with a lower score has fitted nothing."""

from __future__ import annotations

import numpy as np
import scipy.stats

from rayfbnn.arrays import Array


def log_probability_without_inputs(training: Array, test: Array, *, has_labels: bool) -> float:
    """Return the mean log probability of test cases, in nats a case, if only the training targets are known.

    The probability of a label is its share of the training cases, with one case of each label added. Numbers
    are Gaussian with the mean and the standard deviation of the training targets. A case's targets are
    independent.

    Parameters
    ----------
    training : (n_training_cases, n_targets)  on the network's scale, NaN where missing
    test : (n_test_cases, n_targets)          on the network's scale, NaN where missing
    has_labels : bool                         True for labels, 0, 1, ..., and False for real numbers
    """
    total, is_known = np.zeros(len(test)), ~np.isnan(test)
    for known, right, at in zip(training.T, test.T, is_known.T, strict=True):
        known = known[~np.isnan(known)]
        if has_labels:
            labels = np.union1d(known, right[at])
            shares = (1 + (known[:, None] == labels).sum(axis=0)) / (len(known) + len(labels))
            total[at] += np.log(shares[np.searchsorted(labels, right[at])])
        else:
            total[at] += scipy.stats.norm.logpdf(right[at], known.mean(), known.std())
    return float(total[is_known.any(axis=1)].mean())
