"""Table 3: predictions from a few words, and which words these are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hopfy.paper._base import Config, Experiment, Figure, Grid, Progress, Row, Store
from hopfy.paper._processes import keeping_memory
from hopfy.paper._published import RATIONALES
from hopfy.paper.rationale._task import METHODS, OTHERS, OURS, Task

__all__ = ["Rationale", "RationaleConfig", "experiment"]

NAMES = {
    "sst": "SST",
    "ag_news": "AgNews",
    "imdb": "IMDB",
    "beer": "Beer",
    "eraser_movies": "ERASER movies",
    "planted": "Written sentences",
}
_SIZES = {
    "sst": (19, 6_920),
    "ag_news": (43, 18_349),
    "imdb": (270, 22_500),
    "beer": (152, 8_100),
    "eraser_movies": (774, 1_600),
}
"""Words of a training text on average, and how many there are: for estimates of the time left."""
_ONE_READER = (*OURS, "sparsemax", "fusedmax", "softmax", "BiLSTM")
"""Methods with one LSTM; the others have two."""
_OVERHEAD = 30
"""Features of an LSTM that would take as long as what else is computed for a word."""
_PER_TEXT = 20
"""Words that would take one LSTM as long as what a step does for each of its texts, whatever their length."""
_PLANTED = Task(
    "planted", 0.15, 2.0, hidden=16, lr=5e-3, epochs=8, word_dropout=0.3, judged=100, seeds=1,
    test_transition=4.0, own_network=False, methods=("k-subsets", *OTHERS),
)  # fmt: skip


@dataclass(frozen=True)
class RationaleConfig(Config):
    """What is trained.

    Attributes:
        tasks: in this order; two may share a data set and differ in their methods.
        substitute: what is used instead where none of the tasks' texts are on this machine.
    """

    tasks: tuple[Task, ...] = ()
    substitute: Task | None = None


# Not in the paper, so the settings are ours. The paper's transition of 0.001 while training is too small
# to act, so both read one network.
_ERASER = Task("eraser_movies", 0.2, own_network=False, methods=("k-subsets", *OTHERS))
_PAPER = (
    Task("sst", 0.2, 0.1),
    Task("ag_news", 0.2, dropout=0.0),
    _ERASER,
    Task("beer", 0.1),
    Task("imdb", 0.1),
)
_QUICK = (
    Task("sst", 0.2, 0.1, hidden=32, lr=3e-3, epochs=6, training=2_000, judged=300, seeds=1),
    replace(
        _ERASER,
        hidden=32,
        lr=3e-3,
        epochs=5,
        training=200,
        longest=200,
        seeds=1,
        methods=("k-subsets",),
    ),
)
# Smaller networks and higher learning rates than the paper's, fewer texts and epochs, so that most cells
# take about a minute of one core.
_LAPTOP_NEWS = Task(
    "ag_news", 0.2, dropout=0.0, hidden=64, lr=2e-3, epochs=6, patience=3, training=4_000,
    judged=500, seeds=1,
)  # fmt: skip
_LAPTOP_ANY = Task(
    "", 0.1, vectors="minilm", hidden=64, lr=2e-3, weight_decay=0.0, epochs=6, patience=3,
    judged=300, seeds=1,
)  # fmt: skip
_LAPTOP = (
    replace(
        _LAPTOP_ANY, data="sst", share=0.2, temperature=0.1, weight_decay=1e-4, epochs=5,
        patience=2, seeds=3,
    ),
    _LAPTOP_NEWS,
    replace(_LAPTOP_NEWS, data="beer", share=0.1, dropout=0.5, weight_decay=0.0, training=2_000),
    replace(_LAPTOP_ANY, data="imdb", dropout=0.2, training=2_000, test=5_000, longest=200),
    replace(
        _LAPTOP_ANY, data="eraser_movies", share=0.2, lr=1e-3, longest=300, seeds=3,
        own_network=False, methods=_ERASER.methods,
    ),
)  # fmt: skip
# The gap to the paper with all texts that are here: the two Hopfield maps, which share a network as on
# ERASER, the two baselines of the paper's Table 3, and the mean of all words. The temperature, ten times
# the paper's, was chosen by validation, and so were vectors, dropout, size and decay on AgNews.
_LARGER = (
    replace(
        _LAPTOP_NEWS, training=0, temperature=0.5, own_network=False, vectors="glove_100d+minilm",
        word_dropout=0.4, dropout=0.3, hidden=100, decay=0.6, epochs=7,
        methods=("k-subsets", "SPECTRA", "HardKuma", "BiLSTM"),
    ),
    replace(
        _LAPTOP_ANY, data="imdb", temperature=0.5, dropout=0.2, longest=300, own_network=False,
        methods=("k-subsets", "SPECTRA", "HardKuma", "BiLSTM"),
    ),
)  # fmt: skip

_REFERENCE = Task(
    "", 0.2, 0.1, epochs=100, min_epochs=45, patience=12, as_reference_code=True, methods=OURS
)
_REFERENCE_CODE = (
    replace(_REFERENCE, data="sst"),
    replace(_REFERENCE, data="ag_news", temperature=0.05, dropout=0.0),
    # The dropout differs between the methods there, on Beer only.
    replace(_REFERENCE, data="beer", share=0.1, temperature=0.05, dropout=0.0, methods=OURS[:1]),
    replace(_REFERENCE, data="beer", share=0.1, temperature=0.05, dropout=0.5, methods=OURS[1:]),
    replace(_REFERENCE, data="imdb", share=0.1, temperature=0.05),
)


def _on_laptop(task: Task) -> Task:
    """The network and the training of the public code on the laptop profile's texts, with one seed.

    Where both maps have the same dropout, they read one network.
    """
    (known,) = (each for each in _LAPTOP if each.data == task.data)
    shared = task.methods == OURS
    return replace(
        task,
        vectors=known.vectors,
        training=known.training,
        test=known.test,
        longest=known.longest,
        judged=known.judged,
        seeds=1,
        own_network=not shared,
        methods=OURS[:1] if shared else task.methods,
    )


_REFERENCE_LAPTOP = tuple(map(_on_laptop, _REFERENCE_CODE))


class Rationale(Experiment[RationaleConfig]):
    """Twelve published ways to select words and two more, on texts of five kinds."""

    name: ClassVar[str] = "rationale"
    title: ClassVar[str] = "Table 3: predictions that show the words they used"
    profiles: ClassVar[Mapping[str, RationaleConfig]] = {
        "demo": RationaleConfig(tasks=(replace(_PLANTED, methods=("k-subsets",)),)),
        "quick": RationaleConfig(tasks=_QUICK, substitute=_PLANTED),
        "laptop": RationaleConfig(tasks=_LAPTOP),
        "larger": RationaleConfig(tasks=_LARGER),
        "paper": RationaleConfig(tasks=_PAPER),
        "reference-code": RationaleConfig(tasks=_REFERENCE_CODE),
        "reference-laptop": RationaleConfig(tasks=_REFERENCE_LAPTOP),
    }

    def data_checksum(self, config: RationaleConfig) -> str:
        from hopfy.paper.rationale._texts import checksum

        every = "".join(checksum(task) for task in _tasks(config))
        return hashlib.sha256(every.encode()).hexdigest()

    def run(self, config: RationaleConfig, store: Store, progress: Progress) -> dict[str, Any]:
        """Train and test every method on every task; each is a part that depends on its task only."""
        from hopfy.paper.rationale import _training as training

        cells = list(_cells(config, store))
        progress.begin(self.title, len(cells), sum(cell.cost for cell in cells))
        # What an earlier run has finished comes first: it is shown at once.
        with keeping_memory():
            for cell in sorted(cells, key=lambda cell: not cell.is_finished):
                cell.part(training.measure)
                progress.advance(cost=cell.cost)
        return _results(config, [(cell, cell.part(training.measure)) for cell in cells])

    def so_far(self, config: RationaleConfig, store: Store) -> dict[str, Any]:
        """Methods without any finished seed are left out, others have fewer seeds."""

        def refuse(*_: Any) -> Any:
            raise _UnfinishedError

        found = []
        for cell in _cells(config, store):
            with suppress(_UnfinishedError):
                found.append((cell, cell.part(refuse)))
        if not found:
            raise ValueError("expected at least one finished cell of the table, got none yet.")
        return _results(config, found)

    def compare(self, results: Mapping[str, Any]) -> list[Row]:
        """Nothing is judged: the word vectors are others than the paper's, and some of the data."""
        rows = []
        for data, cells in results["cells"].items():
            measured = "mean squared error" if data == "beer" else "F1"
            for method, runs in cells.items():
                published = RATIONALES.get(method)
                paper = getattr(published, data, None)
                name = f"{NAMES[data]}, {method}: {measured}"
                rows.append(Row(name, _mean(runs, "score"), paper.mean if paper else None))
        for data, cells in results["cells"].items():
            for method, runs in cells.items():
                rows.extend(_about_words(data, method, runs))
        return rows

    def grids(self, results: Mapping[str, Any]) -> list[Grid]:
        """Table 3 with the paper's numbers in brackets, and one table about the words."""
        return [_scores_grid(results["cells"]), _words_grid(results["cells"])]

    def recorded(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without the texts of the examples; of each epoch only its validation score."""
        cells = {
            data: {method: [_without_texts(run) for run in runs] for method, runs in own.items()}
            for data, own in results["cells"].items()
        }
        return {**results, "cells": cells}

    def merged(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new record, with the data and the methods of the same settings that only an old one has."""
        known = {task["data"] for task in new["tasks"]}
        tasks = [task for task in old["tasks"] if task["data"] not in known] + new["tasks"]
        cells = {**old["cells"], **new["cells"]}
        for data in known & old["cells"].keys():
            if _settings_on(old, data) == _settings_on(new, data):
                both = {**old["cells"][data], **new["cells"][data]}
                cells[data] = {method: both[method] for method in METHODS if method in both}
        return {**new, "tasks": tasks, "cells": cells}

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        from hopfy.paper.rationale._figures import draw_highlights, draw_scores

        figures = [Figure("scores", draw_scores(results, NAMES, folder))]
        caption = draw_highlights(results, NAMES, folder)
        if caption is not None:
            figures.append(Figure("highlights", caption))
        return figures

    def explain(self, results: Mapping[str, Any]) -> str:
        data = results["cells"]
        text = (
            "A network reads a text and predicts from the few words that its pooling selects. "
            f"{_vectors_in_words(results['tasks'])} stand in for the paper's 300-dimensional GloVe. "
        )
        if "planted" in data:
            text = (
                "A network reads a text and predicts from the few words that its pooling selects. "
                "Here the texts are put together from sentences that were written for this page: "
                "remarks about an evening at the cinema, and one verdict, whose two words decide. "
            )
        shared = {task["data"] for task in results["tasks"] if not task["own_network"]}
        return (text + _claims(data, shared)).strip()


def _vectors_in_words(tasks: Sequence[Mapping[str, Any]]) -> str:
    names = {
        "glove": "50-dimensional GloVe vectors",
        "glove_100d": "100-dimensional GloVe vectors",
        "minilm": "100-dimensional vectors of word pieces",
    }
    used = dict.fromkeys(names[name] for task in tasks for name in task["vectors"].split("+"))
    return "Frozen " + " and ".join(used)


class _UnfinishedError(RuntimeError):
    """A part is not there yet."""


class _Cell(NamedTuple):
    """One training run, and where its result is kept."""

    task: Task
    method: str
    seed: int
    parts: Store

    @property
    def cost(self) -> float:
        """What training takes beside other cells: words times the LSTM's features, for each LSTM.

        Steps on short texts take most of their time elsewhere, hence a constant for each text.
        """
        words, texts = _SIZES.get(self.task.data, (20, 400))
        texts = min(texts, self.task.training or texts)
        words = min(words, self.task.longest or words)
        readers = 1 if self.method in _ONE_READER else 2
        read = texts * self.task.epochs * (_PER_TEXT + readers * words)
        return float(read * (self.task.hidden + _OVERHEAD))

    @property
    def name(self) -> str:
        """Of the part."""
        return f"{self.task.data} {self.method} seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether an earlier run has left a result."""
        return self.parts.path(self.name).is_file()

    def part(self, measure: Callable[[str, Task, int], Any]) -> Any:
        """What an earlier run has found, or what ``measure`` finds now."""
        return self.parts.part(self.name, partial(measure, self.method, self.task, self.seed))


def _cells(config: RationaleConfig, store: Store) -> Iterator[_Cell]:
    from hopfy.paper.rationale._texts import checksum

    for task in _tasks(config):
        # One more method or seed changes nothing for the others.
        alone = replace(task, methods=(), seeds=1)
        depends_on = {"task": asdict(alone), "data": checksum(task)}
        parts = store.narrowed(depends_on | {"hopfy": store.depends_on.get("hopfy")})
        for method in task.methods:
            for seed in range(config.seed, config.seed + task.seeds):
                yield _Cell(alone, method, seed, parts)


def _results(config: RationaleConfig, found: Sequence[tuple[_Cell, Any]]) -> dict[str, Any]:
    cells: dict[str, dict[str, list[Any]]] = {}
    for cell, result in found:
        for method, own in {cell.method: result, **result.get("also", {})}.items():
            cells.setdefault(cell.task.data, {}).setdefault(method, []).append(own)
    ordered = {
        data: {method: own[method] for method in METHODS if method in own}
        for data, own in cells.items()
    }
    return {"tasks": [asdict(task) for task in _tasks(config)], "cells": ordered}


def _tasks(config: RationaleConfig) -> tuple[Task, ...]:
    """Those whose texts are here; the substitute, if there is one, where none are."""
    from hopfy.paper.rationale._texts import is_here

    if config.substitute is None:
        return config.tasks
    return tuple(task for task in config.tasks if is_here(task)) or (config.substitute,)


def _settings_on(record: Mapping[str, Any], data: str) -> list[Task]:
    """All that the cells of a data set depend on; what an old record lacks has its default."""
    own = [Task(**task) for task in record["tasks"] if task["data"] == data]
    return [replace(task, methods=(), seeds=1) for task in own]


def _without_texts(run: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: each for name, each in run.items() if name not in ("also", "examples", "history")}
    scores = [epoch["valid_score"] for epoch in run["history"] if "valid_score" in epoch]
    return kept | {"validation": scores}


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([run[key] for run in runs]))


def _scores_grid(data: Mapping[str, Any]) -> Grid:
    headings = ["method"]
    headings += [f"{NAMES[name]}, {'error' if name == 'beer' else 'F1'}" for name in data]
    lines = []
    for method in METHODS:
        line = [method]
        for name, cells in data.items():
            published = getattr(RATIONALES.get(method), name, None)
            ours = f"{_mean(cells[method], 'score'):.3f}" if method in cells else "–"
            line.append(ours + (f" ({published.mean:g})" if published and method in cells else ""))
        if any(method in cells for cells in data.values()):
            lines.append(line)
    title = "Test scores, the paper's in brackets. F1 is over all classes; the error is squared."
    return Grid(title, headings, lines)


def _words_grid(data: Mapping[str, Any]) -> Grid:
    kinds = ("selected", "span", "sufficiency", "comprehensiveness")
    lines = []
    for name, cells in data.items():
        for method, runs in cells.items():
            if "selected" not in runs[0]:
                continue
            overlap = "–"
            if runs[0].get("overlap"):
                overlap = f"{np.mean([run['overlap']['f1'] for run in runs]):.3f}"
            numbers = [f"{_mean(runs, kind):.3f}" for kind in kinds]
            lines.append([f"{NAMES[name]}, {method}", *numbers, overlap])
    headings = ["", "share of words", "words in a span", *kinds[2:], "overlap with people, F1"]
    title = (
        "The rationales. Sufficiency: what the prediction loses with the rationale alone (low is "
        "good); comprehensiveness: without it (high is good)."
    )
    return Grid(title, headings, lines)


def _about_words(data: str, method: str, runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What a table of scores does not say: how much is selected, in what shape, how faithful."""
    if "selected" not in runs[0]:
        return []
    name = f"{NAMES[data]}, {method}"
    rows = [
        Row(f"{name}: share of words selected", _mean(runs, "selected")),
        Row(f"{name}: words in a span", _mean(runs, "span")),
        Row(f"{name}: sufficiency (low is good)", _mean(runs, "sufficiency")),
        Row(f"{name}: comprehensiveness (high is good)", _mean(runs, "comprehensiveness")),
    ]
    if runs[0].get("overlap"):
        for part in ("precision", "recall", "f1"):
            value = float(np.mean([run["overlap"][part] for run in runs]))
            what = "F1" if part == "f1" else part
            rows.append(Row(f"{name}: {what} beside human rationales", value))
    return rows


def _claims(data: Mapping[str, Any], shared: Collection[str]) -> str:
    """What the numbers say about the paper's findings, whichever way they fall.

    On ``shared`` data both Hopfield maps read the same networks.
    """
    sentences = []
    for name in ("sst", "imdb"):
        cells = data.get(name, {})
        if {*OURS, "BiLSTM"} <= cells.keys():
            best = _mean(cells["BiLSTM"], "score")
            plain, chained = (_mean(cells[method], "score") for method in OURS)
            sentences.append(
                f"{NAMES[name]}: F1 {plain:.3f} with k-subsets, {chained:.3f} with sequential "
                f"k-subsets, {best:.3f} from all words."
            )
    for name, cells in data.items():
        if set(OURS) <= cells.keys() and cells[OURS[0]][0].get("overlap"):
            f1 = [np.mean([run["overlap"]["f1"] for run in cells[method]]) for method in OURS]
            span = [_mean(cells[method], "span") for method in OURS]
            verb = "agrees more" if f1[1] > f1[0] else "does not agree more"
            sentences.append(
                f"{NAMES[name]}: sequential k-subsets {verb} with people than k-subsets (overlap F1 "
                f"{f1[1]:.3f} against {f1[0]:.3f}), in spans of {span[1]:.2f} against {span[0]:.2f} "
                "words."
                + (
                    " Both read the same networks, trained with k-subsets."
                    if name in shared
                    else ""
                )
            )
    return " ".join(sentences)


experiment = Rationale()
