"""Parameters in groups: scikit-learn's clone, get_params, set_params and grids reach all of them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytest.importorskip("skorch")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid

from hopfy.estimators import (
    ExponentialDecay,
    MILClassifier,
    RationaleClassifier,
    RationaleRegressor,
    ReduceOnPlateau,
    Training,
)

ESTIMATORS = [MILClassifier, RationaleClassifier, RationaleRegressor]


@pytest.fixture(params=ESTIMATORS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_constructors_are_short(kind):
    assert len(inspect.signature(kind).parameters) <= 13


def test_nested_names_reach_a_group_that_was_not_given(kind):
    for group, settings in kind._groups.items():
        for name, default in settings().get_params().items():
            model = kind()
            assert model.get_params()[f"{group}__{name}"] == default
            assert getattr(model, group) is None
            model.set_params(**{f"{group}__{name}": 7})
            assert getattr(getattr(model, group), name) == 7
            assert kind().get_params()[f"{group}__{name}"] == default  # nothing is shared


def test_what_set_params_sets_get_params_gets_and_clone_copies(kind):
    model = kind(training=Training(lr=0.5, schedule=ExponentialDecay(0.9)))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.training is not model.training
    copy.set_params(training__lr=0.25)
    assert (model.training.lr, copy.training.lr) == (0.5, 0.25)
    assert copy.get_params() != model.get_params()
    again = kind().set_params(**copy.get_params(deep=False))
    assert again.get_params() == copy.get_params()


def test_a_parameter_that_moved_is_an_error_that_says_where(kind):
    for name, group in kind._moved.items():
        with pytest.raises(TypeError, match=rf"{name} as a part of {group}.*{group}="):
            kind(**{name: 1})
        with pytest.raises(TypeError, match=rf"set_params\({group}__{name}="):
            kind().set_params(**{name: 1})


def test_a_group_of_another_kind_is_refused(kind):
    with pytest.raises(TypeError, match=r"to be hopfy\.estimators\.Training or None, got dict"):
        kind(training={"lr": 0.1}).fit([["a"], ["b"]], [0, 1])


def test_unknown_parameters_are_still_refused(kind):
    with pytest.raises(TypeError):
        kind(no_such=1)
    with pytest.raises(ValueError, match="Invalid parameter"):
        kind().set_params(training__no_such=1)


# A value of every sort that a parameter has.
VALUES = {
    "given groups": lambda kind: {name: made() for name, made in kind._groups.items()},
    "no groups": lambda kind: dict.fromkeys(kind._groups),
    "a schedule": lambda _: {"training": Training(schedule=ExponentialDecay(0.9))},
    "a constant rate": lambda _: {"training": Training(schedule=None)},
    "a class": lambda _: {"training": Training},
    "a dict": lambda _: {"training": {"lr": 0.1}},
}


@pytest.mark.parametrize("values", VALUES)
def test_a_nested_name_that_does_not_exist_is_a_value_error_that_lists_names(kind, values):
    given = VALUES[values](kind)
    names = [*kind().get_params(), "no_such", "no_such__lr"]
    for name in names:
        nested = f"{name}__no_such"
        model = kind(**given)
        before = model.get_params()
        with pytest.raises(
            ValueError, match=r"Invalid parameter '.*no_such.*Valid parameters are"
        ) as e:
            model.set_params(**{nested: 1})
        assert nested.rpartition("__")[2] in str(e.value)
        assert model.get_params() == before


def test_if_one_name_is_wrong_nothing_is_set(kind):
    model = kind(training=Training(lr=0.5))
    before = model.get_params()
    for wrong in ("training__no_such", "no_such", "training__schedule__x"):
        with pytest.raises(ValueError, match="Invalid parameter"):
            model.set_params(training__lr=0.1, random_state=7, **{wrong: 1})
        assert model.get_params() == before
        fresh = kind()
        with pytest.raises(ValueError, match="Invalid parameter"):
            fresh.set_params(training__lr=0.1, **{wrong: 1})
        assert fresh.training is None


def test_all_parameters_at_once_and_one_by_one(kind):
    model = kind(training=Training(lr=0.5, patience=None, schedule=ReduceOnPlateau(0.5)))
    everything = model.get_params()
    assert (
        kind().set_params(**clone(everything, safe=False)).get_params().keys() >= everything.keys()
    )
    for name, value in everything.items():
        assert clone(model).set_params(**{name: value}).get_params()[name] == value
        copy = clone(model)
        copy.set_params(**{name: None})
        assert copy.get_params()[name] is None
        assert model.get_params() == everything  # the original's groups are its own
    group = clone(model).set_params(training=None, training__lr=0.25, training__clip=None)
    assert (group.training.lr, group.training.clip, group.training.patience) == (0.25, None, "auto")


def test_a_grid_over_a_group(kind):
    rates = [0.01, 0.001]
    points = list(ParameterGrid({"training__lr": rates}))
    models = [clone(kind()).set_params(**point) for point in points]
    assert sorted(model.training.lr for model in models) == sorted(rates)


def test_a_search_over_learning_rates():
    bags = [np.random.default_rng(n).normal(size=(3, 2)) + 3 * (n % 2) for n in range(24)]
    model = MILClassifier(embedding_size=8, training=Training(max_epochs=3), random_state=0)
    grid = {"training__lr": [0.02, 1e-7], "training__schedule": [None, ReduceOnPlateau(0.5, 1)]}
    search = GridSearchCV(model, grid, cv=2).fit(bags, np.arange(24) % 2)
    assert search.best_params_["training__lr"] == 0.02
    assert search.best_estimator_.training.max_epochs == 3


def test_auto_is_the_estimators_choice():
    assert RationaleClassifier()._training().max_epochs == 30
    assert RationaleClassifier(training=Training(lr=1.0))._training().clip == 5.0
    assert MILClassifier()._training().patience == 10
    assert MILClassifier(training=Training(patience=None))._training().patience is None


@pytest.mark.parametrize("factor", [0.0, 1.5, -1, "1", float("nan")])
def test_a_factor_outside_its_range_is_refused(factor):
    for schedule in (ExponentialDecay, ReduceOnPlateau):
        with pytest.raises(ValueError, match="factor above 0 and at most 1"):
            schedule(factor)
