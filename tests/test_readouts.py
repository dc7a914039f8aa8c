"""kNN, linear probe and support vector machine: against slow versions and scikit-learn."""

import numpy as np
import pytest
import torch
from drawn import seeded
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from hnlib.training import evaluation

PENALTIES = [1e-3, 1e-2, 0.1, 1, 10, 100, 1000]


def accuracy(correct):
    return float(correct.double().mean())


def blobs(n=120, d=5, classes=3, seed=0, spread=1.0):
    generator = seeded(seed)
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    y = torch.arange(n) % classes
    return centres[y] + spread * torch.randn(n, d, generator=generator, dtype=torch.float64), y


@pytest.mark.parametrize("k, t", [(1, 0.5), (7, 0.05), (40, 0.2), (40, 2.0)])
def test_knn_is_scikit_learns_with_exponential_weights(k, t):
    x, y = blobs(60)
    sets = x[:40], y[:40], x[40:], y[40:]
    found = evaluation.weighted_knn(*sets, k=k, temperature=t, chunk=7)
    options = dict(metric="cosine", weights=lambda d: np.exp(-d / t))
    theirs = KNeighborsClassifier(k, **options).fit(*sets[:2]).predict(x[40:])
    assert found.tolist() == (theirs == y[40:].numpy()).tolist()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_probe_is_scikit_learns_regression_on_standardised_features(classes):
    x, y = blobs(300, classes=classes, seed=1, spread=3.0)
    y = torch.tensor([5, 3, 9])[y]
    x = x * torch.tensor([1e-3, 1.0, 1e3, 5.0, 1.0]) + 3
    parts = x[:200], y[:200], x[200:], y[200:]
    scaled = ((v - x[:200].mean(0)) / x[:200].std(0, unbiased=False) for v in (x[:200], x[200:]))
    train, test = (v.numpy() for v in scaled)

    def theirs(C):
        regression = LogisticRegression(C=C, tol=1e-8, max_iter=5000).fit(train, y[:200])
        return torch.from_numpy(regression.predict(test) == y[200:].numpy())

    for C in (0.03, 1.0):
        assert torch.equal(evaluation.linear_probe(*parts, C=C), theirs(C))
    assert not torch.equal(evaluation.linear_probe(*parts, C=1e-4), theirs(1.0)), "control"


def test_the_probe_sees_all_features_beside_one_of_a_large_deviation():
    x, y = blobs(200, classes=2, spread=0.3)
    large = 3e6 * torch.randn(200, 1, generator=seeded()).double()
    constant = torch.full((200, 1), 7.0, dtype=x.dtype)
    wide = torch.cat([x, large, constant], 1).float()
    assert accuracy(evaluation.linear_probe(wide[:100], y[:100], wide[100:], y[100:])) == 1
    noise = wide[:, 5:]
    assert accuracy(evaluation.linear_probe(noise[:100], y[:100], noise[100:], y[100:])) < 0.7


def heavy_tailed(n, classes, seed, d=8):
    """Sums over graphs of very different sizes: float32, some entries far above the rest."""
    x, y = blobs(n, d, classes, seed, spread=1.5)
    size = torch.randn(n, 1, generator=seeded(seed), dtype=torch.float64)
    return ((0.6 * x + size).exp() * 10).float(), y


@pytest.mark.parametrize("n, classes, seed", [(90, 2, 0), (120, 3, 1)])
def test_svm_is_scikit_learns_grid_search_on_features_as_they_are(n, classes, seed):
    x, y = heavy_tailed(n, classes, seed)
    train, test = evaluation.stratified_folds(y, 5, seed)[0]
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    search = GridSearchCV(SVC(), {"C": PENALTIES}, cv=folds).fit(x[train], y[train])
    accuracy, inner, C = evaluation.svm(x, y, train, test, seed)
    # scikit-learn breaks ties by the last digit
    assert PENALTIES[search.cv_results_["mean_test_score"].round(12).argmax()] == C
    assert inner == pytest.approx(search.best_score_, abs=1e-12)
    assert accuracy == SVC(C=C).fit(x[train], y[train]).score(x[test], y[test])
    # a machine on standardised features is another machine: the comparison can fail
    z = (x - x[train].mean(0)) / x[train].std(0)
    assert evaluation.svm(z, y, train, test, seed)[1:] != (inner, C)


def test_svm_chooses_on_inner_folds_and_ties_go_to_the_smallest():
    x, y = blobs(90, 8, 2, spread=1.5)
    train, test = evaluation.stratified_folds(y, 5)[0]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    means = [cross_val_score(SVC(C=C), x[train], y[train], cv=folds).mean() for C in PENALTIES]
    best = int(np.argmax(np.round(means, 12)))
    accuracy, inner, C = evaluation.svm(x, y, train, test)
    assert PENALTIES[best] == C and inner == pytest.approx(means[best], abs=1e-12)
    assert accuracy == SVC(C=C).fit(x[train], y[train]).score(x[test], y[test])
    # a machine on one feature is another machine: the comparison can fail
    assert evaluation.svm(x[:, :1], y, train, test)[1:] != (inner, C)


def test_embeddings_that_are_not_finite_are_refused():
    x, y = blobs(30)
    x[[3, 25], 0] = torch.nan
    (train, test), *_ = evaluation.stratified_folds(y, 3)
    with pytest.raises(ValueError, match=r"2 of the 30 embeddings are not finite; .* has diverged"):
        evaluation.svm(x, y, train, test)
