"""MILClassifier: the laws of bags, scikit-learn's contract, files, and a problem it must solve."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import hopfy

pytest.importorskip("skorch")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from hopfy._files.tensors import StoredFile, Streamed, write
from hopfy.estimators import Bags, MILClassifier, OnInstances, _mil
from hopfy.estimators._bags import pack

SMALL = {"embedding_size": 16, "training__max_epochs": 3, "random_state": 0}
OMEGAS = ["softmax", "sparsemax", "5-normmax", "2-subsets"]


def mil(**parameters: object) -> MILClassifier:
    """A classifier with these parameters, those of groups by their nested names."""
    return MILClassifier().set_params(**parameters)


def problem(count: int = 60, seed: int = 0, size: int = 4) -> tuple[list[np.ndarray], np.ndarray]:
    """Bags of 1 to 7 vectors; in a positive bag one of them is far out."""
    generator = np.random.default_rng(seed)
    bags = [generator.normal(size=(n, size)) for n in generator.integers(1, 8, size=count)]
    labels = np.arange(count) % 2
    for bag, label in zip(bags, labels, strict=True):
        bag[generator.integers(len(bag)), 0] += 5 * label
    return bags, labels


@pytest.fixture(scope="module")
def fitted() -> MILClassifier:
    return mil(**SMALL).fit(*problem())


# ---------------------------------------------------------------------------------- laws


@pytest.mark.parametrize(
    "options", [{"omega": name} for name in OMEGAS] + [{"pooling": p} for p in _mil._POOLINGS[1:]]
)
def test_neither_order_nor_padding_nor_batching_changes_a_prediction(options):
    bags, labels = problem()
    classifier = mil(**SMALL, **options).fit(bags, labels)
    expected = classifier.predict_proba(bags)
    weights = classifier.instance_weights(bags)
    generator = np.random.default_rng(1)
    orders = [generator.permutation(len(bag)) for bag in bags]
    shuffled = [bag[order] for bag, order in zip(bags, orders, strict=True)]
    np.testing.assert_allclose(classifier.predict_proba(shuffled), expected, atol=1e-6)
    for own, other, order in zip(
        weights, classifier.instance_weights(shuffled), orders, strict=True
    ):
        np.testing.assert_allclose(other, own[order], atol=1e-5)
    alone = np.concatenate([classifier.predict_proba([bag]) for bag in bags])
    np.testing.assert_allclose(alone, expected, atol=1e-6)
    padded = [*bags, np.zeros((50, 4))]
    np.testing.assert_allclose(classifier.predict_proba(padded)[:-1], expected, atol=1e-6)
    ones = classifier.set_params(training__batch_size=1).predict_proba(bags)
    np.testing.assert_allclose(ones, expected, atol=1e-6)


def test_a_bag_of_one_instance_is_decided_by_it():
    bags, labels = problem()
    for name in OMEGAS:
        classifier = mil(**SMALL, omega=name).fit(bags, labels)
        assert classifier.predict_proba([bags[0][:1]]).shape == (1, 2)
        np.testing.assert_allclose(classifier.instance_weights([bags[0][:1]])[0], [1.0], atol=1e-6)
        np.testing.assert_allclose(  # a vector is such a bag
            classifier.predict_proba([bags[0][0]]), classifier.predict_proba([bags[0][:1]])
        )


def test_weights_sum_to_what_omega_selects():
    bags, labels = problem()
    for name, total in (("sparsemax", 1), ("3-subsets", 3)):
        weights = mil(**SMALL, omega=name).fit(bags, labels).instance_weights(bags)
        for bag, own in zip(bags, weights, strict=True):
            assert own.shape == (len(bag),)
            assert own.sum() == pytest.approx(min(total, len(bag)), abs=1e-5)
            assert (own >= 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bags: [*bags[:-1], bags[0][:0]], "instance in bag 59, got an empty bag"),
        (lambda bags: [*bags[:-1], bags[0] * np.nan], "features in bag 59, got NaN"),
        (lambda bags: [*bags[:-1], bags[0][:, :3]], r"\(4,\) of those in bag 0, got \(3,\) in bag"),
        (lambda bags: bags[:-1], "one label for each of 59 bags, got 60 labels"),
        (lambda bags: np.concatenate(bags), "a table of instances needs bag_ids"),
    ],
)
def test_bad_bags_are_one_message(change, message):
    bags, labels = problem()
    with pytest.raises(ValueError, match=message):
        MILClassifier().fit(change(bags), labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(60, int), "at least two classes in y, got one class only"),
        (np.linspace(0, 1, 60), "Unknown label type"),
        (np.full(60, np.nan), "Input y contains NaN"),
        (None, "requires y to be passed"),
    ],
)
def test_bad_labels_are_one_message(labels, message):
    with pytest.raises(ValueError, match=message):
        MILClassifier().fit(problem()[0], labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "rnn"}, "embedding to be 'mlp', 'cnn' or a module, got 'rnn'"),
        ({"embedding": "cnn"}, "sides of at least 16"),
        ({"embedding": nn.Flatten(0)}, "expected the embedding to turn 2 instances"),
        ({"pooling": "median"}, "pooling to be one of"),
        ({"omega": "median"}, "expected a name such as"),
        ({"heads": 0}, "heads to be an integer of at least 1"),
        ({"bag_dropout": 1.0}, "dropout in"),
        ({"training__schedule": 0.9}, "schedule to be ExponentialDecay"),
        ({"training": 0.1}, "training to be hopfy.estimators.Training or None"),
        ({"training__validation_share": 1.0}, "validation share in"),
        ({"training__max_epochs": 0}, "max_epochs to be an integer"),
        ({"training__lr": -1.0}, "lr to be a finite number above 0"),
        ({"class_weight": "heavy"}, "class_weight"),
    ],
)
def test_bad_parameters_are_one_message(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mil(**options).fit(*problem())


def test_prediction_wants_the_instances_of_the_fit(fitted):
    with pytest.raises(ValueError, match="X has 3 features, but MILClassifier is expecting 4"):
        fitted.predict([np.ones((2, 3))])
    with pytest.raises(ValueError, match=r"instances of shape \(4,\) as in fit, got \(2, 2\)"):
        fitted.predict([np.ones((3, 2, 2))])
    with pytest.raises(NotFittedError):
        MILClassifier().predict(problem()[0])


# ---------------------------------------------------------------------------------- training


def test_a_seed_decides_everything_and_disturbs_nothing():
    bags, labels = problem()
    options = {**SMALL, "bag_dropout": 0.5}
    before = torch.random.get_rng_state()
    first, second = (mil(**options).fit(bags, labels) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(first.predict_proba(bags), second.predict_proba(bags))
    other = mil(**{**options, "random_state": 1}).fit(bags, labels)
    assert not np.array_equal(first.predict_proba(bags), other.predict_proba(bags))


def test_the_held_out_share_stops_the_training_and_the_best_epoch_comes_back():
    bags, labels = problem(80)
    classifier = mil(embedding_size=16, training__lr=0.01, training__patience=2, random_state=3)
    classifier.fit(bags, labels)
    losses = [epoch["valid_loss"] for epoch in classifier.history_]
    best = int(np.argmin(losses))
    assert classifier.n_iter_ == len(losses) == best + 1 + 2 < 100
    # The loss of the held-out bags, found again with the seed, is that of the best epoch.
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    _, held = _mil.hold_out(80, 0.1, seed, labels)
    chance = classifier.predict_proba([bags[number] for number in held])
    loss = -np.log(chance[np.arange(8), labels[held]]).mean()
    assert loss == pytest.approx(losses[best], rel=1e-4)


def test_without_a_share_every_epoch_is_run():
    classifier = mil(
        **{**SMALL, "training__max_epochs": 4}, training__validation_share=0.0, training__patience=1
    )
    classifier.fit(*problem())
    assert classifier.n_iter_ == 4
    assert "valid_loss" not in classifier.history_[0]


def test_balanced_classes_count_the_same():
    generator = np.random.default_rng(0)
    bags = [generator.normal(size=(3, 2)) for _ in range(100)]
    labels = (np.arange(100) % 10 == 0).astype(int)  # nothing to learn but the shares
    shares = {}
    for weight in (None, "balanced", {0: 1.0, 1: 81.0}):
        options = {
            **SMALL,
            "training__max_epochs": 30,
            "training__validation_share": 0.0,
            "class_weight": weight,
        }
        classifier = mil(**options).fit(bags, labels)
        shares[str(weight)] = classifier.predict_proba(bags)[:, 1].mean()
    assert shares["None"] == pytest.approx(0.1, abs=0.07)
    assert shares["balanced"] == pytest.approx(0.5, abs=0.12)
    assert shares["{0: 1.0, 1: 81.0}"] > 0.7


def test_more_than_two_classes_and_labels_of_any_kind():
    bags, _ = problem(90)
    labels = np.array(["ant", "bee", "cat"])[np.arange(90) % 3]
    for bag, label in zip(bags, labels, strict=True):
        bag[0, 1:3] += 6 * np.array([label == "ant", label == "bee"])
    classifier = mil(**{**SMALL, "training__max_epochs": 60}, training__lr=5e-3).fit(bags, labels)
    assert classifier.classes_.tolist() == ["ant", "bee", "cat"]
    chance = classifier.predict_proba(bags)
    assert chance.shape == (90, 3)
    np.testing.assert_allclose(chance.sum(1), 1.0)
    assert classifier.score(bags, labels) > 0.85


def test_a_module_of_ones_own_is_used_and_left_alone():
    bags, labels = problem()
    own = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
    before = {name: value.clone() for name, value in own.state_dict().items()}
    alpha = hopfy.nn.LearnableAlpha(heads=4)
    classifier = mil(**{**SMALL, "embedding": own, "omega": alpha}).fit(bags, labels)
    assert all(torch.equal(before[name], value) for name, value in own.state_dict().items())
    assert torch.equal(alpha.raw, torch.zeros(4))
    trained = classifier.network_
    assert not torch.equal(trained.embedding[0].weight, own[0].weight)
    assert trained.pooling.hopfield.association.omega.raw.abs().max() > 0
    assert classifier.get_params()["embedding"] is own


@pytest.mark.parametrize("pooling", ["hopfield", "gated"])
def test_bag_dropout_drops_weights_while_training_only(pooling):
    bags, labels = problem()
    classifier = mil(**SMALL, bag_dropout=0.75, pooling=pooling).fit(bags, labels)
    network, batch = classifier.network_, pack(bags).batch(range(60))
    with torch.no_grad():
        assert torch.equal(network(**batch), network(**batch))
        network.train()
        torch.manual_seed(0)
        assert not torch.equal(network(**batch), network(**batch))
        kept = torch.stack([network(**batch) for _ in range(400)]).mean(0)
        # The rest is scaled up, so that on average the pooled features are the same.
        torch.testing.assert_close(kept, network.eval()(**batch), rtol=0, atol=0.1)


def test_images_go_through_the_papers_network():
    generator = np.random.default_rng(0)
    bags = [generator.random((n, 16, 16)) for n in generator.integers(1, 4, size=12)]
    labels = np.arange(12) % 2
    options = {**SMALL, "training__max_epochs": 1, "embedding": "cnn"}
    plain = mil(**options).fit(bags, labels)
    deep = mil(**options).fit([bag[:, None] for bag in bags], labels)
    assert plain.instance_shape_ == (16, 16)
    np.testing.assert_allclose(  # one channel may be written or not
        plain.predict_proba(bags), deep.predict_proba([bag[:, None] for bag in bags])
    )


def test_the_progress_bar_counts_epochs(capsys):
    mil(**SMALL, verbose=True).fit(*problem())
    assert "3/3" in capsys.readouterr().err
    mil(**SMALL).fit(*problem())
    assert capsys.readouterr() == ("", "")


# ---------------------------------------------------------------------------------- bag ids


def test_one_array_and_ids_equal_a_list(fitted):
    bags, labels = problem()
    table = np.concatenate(bags)
    ids = np.repeat(np.arange(60)[::-1], [len(bag) for bag in bags])  # first seen, first bag
    order = np.random.default_rng(0).permutation(len(table))
    # Rows in any order: only the order in which bags are first seen follows it.
    seen = np.array(list(dict.fromkeys(ids[order])))
    refit = mil(**SMALL).fit(table, labels, bag_ids=ids)
    assert np.array_equal(refit.predict_proba(bags), fitted.predict_proba(bags))
    np.testing.assert_allclose(
        fitted.predict_proba(table[order], bag_ids=ids[order]),
        fitted.predict_proba(bags)[59 - seen],
        atol=1e-6,
    )
    weights = fitted.instance_weights(table[order], bag_ids=ids[order])
    np.testing.assert_allclose(
        weights, np.concatenate(fitted.instance_weights(bags))[order], atol=1e-6
    )
    assert fitted.score(table, labels, bag_ids=ids) == fitted.score(bags, labels)


# ---------------------------------------------------------------------------------- scikit-learn


# Nothing is exempt: a table counts as bags of one instance, which is what these checks see.
@parametrize_with_checks(
    [
        mil(
            embedding_size=16,
            training__max_epochs=8,
            training__lr=5e-3,
            training__validation_share=0.0,
            heads=1,
        )
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_parameters_can_be_read_set_and_cloned():
    classifier = mil(omega=hopfy.Norm(5.0), beta=2.0)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params()
    assert copy.set_params(omega="softmax").omega == "softmax"


def test_a_grid_of_pipelines_over_bags():
    bags, labels = problem()
    model = make_pipeline(OnInstances(StandardScaler()), mil(**SMALL, training__validation_share=0))
    grid = {"milclassifier__omega": ["softmax", "2-subsets"], "milclassifier__beta": [None, 1.0]}
    search = GridSearchCV(model, grid, cv=2, scoring="roc_auc").fit(bags, labels)
    assert len(search.cv_results_["params"]) == 4
    assert search.predict(bags).shape == (60,)
    assert cross_val_score(mil(**SMALL), pack(bags), labels, cv=2).shape == (2,)


def test_bags_by_id_can_be_searched_over(fitted):
    bags, labels = problem()
    ids = np.repeat(np.arange(60), [len(bag) for bag in bags])
    packed = Bags.from_ids(np.concatenate(bags), ids)
    assert np.array_equal(fitted.predict(packed), fitted.predict(bags))
    search = GridSearchCV(mil(**SMALL), {"heads": [1, 2]}, cv=2).fit(packed, labels)
    assert search.best_params_["heads"] in (1, 2)


def test_a_grid_of_numpys_numbers():
    options = {"heads": np.arange(1, 3)[1], "beta": np.float32(0.5), "embedding_size": np.int64(6)}
    options |= {
        "head_size": np.int32(4),
        "training__max_epochs": np.int64(1),
        "training__batch_size": np.int64(8),
    }
    network = mil(**options).fit(*problem()).network_
    assert network.pooling.hopfield.heads == 2


def test_a_plain_pipeline_over_a_table_and_ids():
    bags, labels = problem()
    table, ids = np.concatenate(bags), np.repeat(np.arange(60), [len(bag) for bag in bags])
    model = make_pipeline(StandardScaler(), mil(**SMALL))
    model.fit(table, labels, milclassifier__bag_ids=ids)
    assert model.predict(table, bag_ids=ids).shape == (60,)


def test_transformed_bags_keep_their_lengths():
    bags, _ = problem()
    transformed = OnInstances(StandardScaler()).fit_transform(bags)
    assert [len(bag) for bag in transformed] == [len(bag) for bag in bags]
    rows = np.concatenate(transformed)
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(0), 1, atol=1e-5)
    with pytest.raises(ValueError, match="bags of vectors"):
        OnInstances(StandardScaler()).fit([np.ones((2, 3, 3))])


def test_a_fitted_classifier_can_be_pickled(fitted):
    bags, _ = problem()
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(bags), fitted.predict_proba(bags))


# ---------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "options",
    [
        {"omega": "5-normmax", "beta": 0.5, "class_weight": {0: 1.0, 1: 2.0}},
        {"omega": hopfy.omega_from("2-subsets"), "heads": 3, "head_size": 5},
        {"pooling": "gated", "random_state": np.random.RandomState(0)},
    ],
)
def test_a_classifier_comes_back_from_its_file(tmp_path, options):
    bags, labels = problem()
    classifier = mil(**{**SMALL, **options}).fit(bags, labels.astype(bool))
    classifier.save(tmp_path / "mil.safetensors")
    again = MILClassifier.load(tmp_path / "mil.safetensors")
    assert np.array_equal(again.predict_proba(bags), classifier.predict_proba(bags))
    assert again.predict(bags).dtype == bool
    expected = {**classifier.get_params(), "random_state": again.random_state}
    assert again.get_params() == expected
    assert clone(again).set_params(random_state=0).fit(bags, labels).score(bags, labels) >= 0


def test_modules_of_ones_own_are_given_again(tmp_path):
    path = tmp_path / "mil.safetensors"
    bags, labels = problem()
    own = {
        "embedding": nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)),
        "omega": hopfy.nn.LearnableAlpha(heads=4),
        "beta": hopfy.nn.LearnableBeta(heads=4),
    }
    classifier = mil(**SMALL, **own).fit(bags, labels)
    classifier.save(path)
    again = MILClassifier.load(path, **own)
    assert np.array_equal(again.predict_proba(bags), classifier.predict_proba(bags))
    with pytest.raises(
        ValueError, match=r"the module for 'omega' .* call load\(path, omega=\.\.\."
    ):
        MILClassifier.load(path, embedding=own["embedding"], beta=own["beta"])
    with pytest.raises(ValueError, match=r"'embedding\.[\w.]+' is .* where the network"):
        MILClassifier.load(path, **{**own, "embedding": nn.Linear(4, 6)})
    mil(**SMALL).fit(bags, labels).save(path)
    with pytest.raises(ValueError, match="got 'embedding'; leave it out"):
        MILClassifier.load(path, embedding=nn.Linear(4, 6))


def test_an_omega_that_no_file_can_describe_is_refused_when_saving(tmp_path):
    class Own(hopfy.Tsallis):
        """Without a family of its own."""

    classifier = mil(**SMALL, omega=Own(1.5))
    with pytest.raises(TypeError, match="that a file can describe"):
        classifier.fit(*problem()).save(tmp_path / "mil.safetensors")
    assert not list(tmp_path.iterdir())


def _parameter(**changes):
    return lambda settings: settings["parameters"].update(changes)


def _training(**changes):
    return lambda settings: settings["parameters"]["training"].update(changes)


HOSTILE = {
    "huge embedding": _parameter(embedding_size=2**45),
    "huge heads": _parameter(heads=2**45),
    "heads that are text": _parameter(heads="4"),
    "no heads": _parameter(heads=0),
    "unknown parameter": _parameter(command="rm"),
    "code as omega": _parameter(omega="__import__('os')"),
    "unknown family": _parameter(omega={"family": "os.system"}),
    "omega without k": _parameter(omega={"family": "subsets"}),
    "module as text": _parameter(embedding="os.path"),
    "list as embedding": _parameter(embedding=["mlp"]),
    "rate that is text": _training(lr="1"),
    "unknown training": _training(command="rm"),
    "code as schedule": _training(schedule={"class": "os.system"}),
    "schedule with text": _training(schedule={"class": "ExponentialDecay", "factor": "1"}),
    "beta that is text": _parameter(beta="1"),
    "another pooling": _parameter(pooling="gated"),
    "huge instances": lambda settings: settings.update(instance_shape=[2**31, 2**31]),
    "negative instances": lambda settings: settings.update(instance_shape=[-4]),
    "shape that is text": lambda settings: settings.update(instance_shape="4"),
    "other features": lambda settings: settings.update(features=17),
    "no features": lambda settings: settings.pop("features"),
    "one class": lambda settings: settings["classes"].update(labels=[0]),
    "equal classes": lambda settings: settings["classes"].update(labels=[1, 1]),
    "three classes": lambda settings: settings["classes"].update(labels=[0, 1, 2]),
    "classes as code": lambda settings: settings["classes"].update(dtype="O,O"),
    "nested classes": lambda settings: settings["classes"].update(labels=[[0], [1]]),
    "classes beyond 64 bits": lambda settings: settings["classes"].update(labels=[0, 2**80]),
    "classes beyond 8 bits": lambda settings: settings["classes"].update(
        dtype="int8", labels=[0, 999]
    ),
    "classes of two kinds": lambda settings: settings["classes"].update(labels=[0, "a"]),
    "classes as a mapping": lambda settings: settings["classes"].update(labels={"0": 1}),
    "no classes": lambda settings: settings.update(classes=None),
    "instances beyond 64 bits": lambda settings: settings.update(instance_shape=[2**80]),
    "a thousand dimensions": lambda settings: settings.update(instance_shape=[1] * 1000),
    "features beyond 64 bits": lambda settings: settings.update(features=2**80),
    "embedding beyond 64 bits": _parameter(embedding_size=2**80),
    "heads beyond 64 bits": _parameter(heads=2**80),
    "negative beta": _parameter(beta=-1.0),
    "no parameters": lambda settings: settings.pop("parameters"),
    "parameters as a list": lambda settings: settings.update(parameters=[1]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_message(tmp_path, fitted, name):
    path = tmp_path / "mil.safetensors"
    fitted.save(path)
    file = StoredFile(path, _mil.KIND)
    settings = json.loads(json.dumps(file.settings))
    HOSTILE[name](settings)
    tensors = {entry: Streamed.of(file.tensor(entry).clone()) for entry in file.entries}
    write(path, _mil.KIND, tensors, settings)
    with pytest.raises(ValueError, match="to be a sound MILClassifier file, but"):
        MILClassifier.load(path)


def test_a_device_never_travels_in_a_file(tmp_path, fitted):
    path = tmp_path / "mil.safetensors"
    moved = copy.copy(fitted).set_params(device="cpu:0", verbose=True)
    moved.save(path)
    assert b"cpu:0" not in path.read_bytes()
    loaded = MILClassifier.load(path)
    assert loaded.device == MILClassifier().device
    assert loaded.verbose == MILClassifier().verbose
    assert {each.device for each in loaded.network_.parameters()} == {torch.device("cpu")}


def test_a_memory_is_not_a_classifier(tmp_path):
    path = tmp_path / "memory.safetensors"
    hopfy.AssociativeMemory().fit(torch.eye(4)).save(path)
    with pytest.raises(ValueError, match=r"does not say that it is a hopfy\.estimators"):
        MILClassifier.load(path)


# ---------------------------------------------------------------------------------- a real problem


def digit_bags(pool: np.ndarray, count: int, k: int, seed: int):
    """K-MIL as the paper draws it: a bag is positive if at least k of its digits are nines."""
    digits = load_digits().target
    generator = np.random.default_rng(seed)
    nines, others = pool[digits[pool] == 9], pool[digits[pool] != 9]
    bags = []
    for number in range(count):
        length = max(k, int(generator.normal(10, 2)))
        low, high = (k, length) if number % 2 else (0, k - 1)
        targets = generator.integers(low, high + 1)
        chosen = [generator.choice(nines, targets), generator.choice(others, length - targets)]
        bags.append(generator.permutation(np.concatenate(chosen)))
    return bags, np.arange(count) % 2


@pytest.mark.parametrize(("k", "omega"), [(1, "sparsemax"), (2, "2-subsets")])
def test_it_finds_the_nines_among_digits(k, omega):
    data = load_digits()
    images, digits = data.images / 16, data.target
    places = np.random.default_rng(0).permutation(len(digits))
    train, labels = digit_bags(places[:900], 400, k, seed=1)
    test, truth = digit_bags(places[900:], 200, k, seed=2)
    classifier = mil(omega=omega, training__max_epochs=40, random_state=0)
    classifier.fit([images[bag] for bag in train], labels)
    assert classifier.score([images[bag] for bag in test], truth) >= 0.94
    positive = [bag for bag, label in zip(test, truth, strict=True) if label]
    weights = classifier.instance_weights([images[bag] for bag in positive])
    on_nines = [
        own[digits[bag] == 9].sum() / own.sum() for own, bag in zip(weights, positive, strict=True)
    ]
    share_of_nines = np.mean([(digits[bag] == 9).mean() for bag in positive])
    assert np.mean(on_nines) > 0.82 > 0.65 > share_of_nines
    assert (
        np.mean(
            [digits[bag[own.argmax()]] == 9 for own, bag in zip(weights, positive, strict=True)]
        )
        > 0.92
    )


# ---------------------------------------------------------------------------------- imports


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_hopfy_does_not_import_the_estimators():
    code = "import hopfy, sys; print({'sklearn', 'skorch', 'hopfy.estimators'} & set(sys.modules))"
    assert run(code).stdout == "set()\n"


def test_a_missing_package_is_one_message():
    found = run("import sys; sys.modules['skorch'] = None; import hopfy.estimators")
    assert found.returncode == 1
    assert (
        "ImportError: hopfy.estimators needs scikit-learn, skorch and tqdm: pip install"
        in found.stderr
    )
