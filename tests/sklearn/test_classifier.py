"""The classifier takes labels of any kind, and gives their probabilities in the order of `classes_`."""

from __future__ import annotations

import numpy as np
import pytest

import rayfbnn
from rayfbnn.store.store import Store
from tests.support.sklearn.small import classifier, labels_spec, three_groups

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, GROUPS = three_groups()


def test_three_labels_as_text() -> None:
    labels = np.array(["setosa", "virginica", "apple"])[GROUPS]
    estimator = classifier().fit(X, labels)
    assert list(estimator.classes_) == ["apple", "setosa", "virginica"]
    p = estimator.predict_proba(X)
    assert p.shape == (30, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_array_equal(estimator.predict(X), estimator.classes_[p.argmax(axis=1)])
    assert estimator.score(X, labels) > 0.8
    np.testing.assert_array_equal(estimator.predict_log_proba(X), np.log(p))
    table = rayfbnn.load(estimator.store_, max_mcse=0.02).predict(X).table
    np.testing.assert_allclose(p, table[["p_apple", "p_setosa", "p_virginica"]], rtol=1e-5)


@pytest.mark.parametrize(
    ("labels", "texts"),
    [([3, -1], ("-1", "3")), (["a", " a"], ("0", "1"))],
    ids=["whole numbers", "texts that differ by a blank"],
)
def test_two_labels(labels: list[object], texts: tuple[str, ...]) -> None:
    y = np.array(labels)[(GROUPS == 1).astype(int)]
    estimator = classifier().fit(X, y)
    assert estimator.classes_.tolist() == sorted(labels)
    store = Store.open(estimator.store_)
    assert store.spec.data_model.kind == "binary"
    assert store.spec.encoding is not None and store.spec.encoding.labels == {"y": texts}
    assert estimator.score(X, y) > 0.8
    assert estimator.predict(X).dtype == y.dtype
    assert (estimator.predict_proba(X)[y == estimator.classes_[1], 1] > 0.5).mean() > 0.8


def test_two_labels_as_classes_of_a_softmax() -> None:
    spec = labels_spec(kept=4) | {"model": {"kind": "class"}}
    estimator = classifier(spec=spec).fit(X, GROUPS == 1)
    assert estimator.predict_proba(X).shape == (30, 2)
    assert Store.open(estimator.store_).spec.data_model.kind == "class"


def test_what_cannot_be_classified_is_refused() -> None:
    with pytest.raises(ValueError, match=r"y: at least two classes are needed, got one class, a"):
        classifier().fit(X, ["a"] * 30)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="must have one target|1d array|multi"):
        classifier().fit(X, np.stack([GROUPS, GROUPS], axis=1))
    with pytest.raises(ValueError, match="binary|class"):
        classifier(spec={"model": {"kind": "binary"}}).fit(X, GROUPS)
