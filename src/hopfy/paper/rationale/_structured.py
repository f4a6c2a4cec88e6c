"""Does it help to train with the sequence structure? Trials on ERASER's movies, by validation data.

``python -m hopfy.paper.rationale._structured "k-subsets" "transition 1"`` trains the named trials (all of
them without a name) on the last 300 words of the reviews and prints, for several transitions at test
time, how the selected words of the *validation* reviews agree with people. ``--seed 1`` is another seed,
``--table docs/results/rationale-structured.json`` prints the documentation's table from the record.
The test set plays no part without ``--test 4``, which reads it with a transition of 4.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from hopfy.estimators import RationaleClassifier, RationaleOptions
from hopfy.estimators.networks import (
    BiLSTM,
    RationaleNetwork,
    ShareOfWords,
    Temperature,
    WordPooling,
)
from hopfy.paper._processes import keeping_memory
from hopfy.paper.rationale._metrics import Flags, human_overlap, macro_f1, mean_span
from hopfy.paper.rationale._task import Task
from hopfy.paper.rationale._texts import Part, load
from hopfy.paper.rationale._training import estimator_of

__all__ = ["TASK", "TRIALS", "GrowingTransition", "Trial", "as_markdown", "facts_about", "try_out"]

TASK = Task(
    "eraser_movies", 0.2, vectors="minilm", hidden=64, lr=1e-3, weight_decay=0.0, epochs=5,
    patience=5, longest=300, seeds=1, methods=(),
)  # fmt: skip
_AT_TEST = (0.0, 1.0, 4.0)
_STEPS = 50
"""Steps of an epoch: 1,600 reviews in batches of 32."""
_WINDOW = 9
"""Words over which scores are averaged."""
_ROUNDING = 1e-5
"""What a weight may differ from 0 or 1 and still counts as such."""


@dataclass(frozen=True)
class Trial:
    """One way to train.

    Attributes:
        name: for the table.
        transition: the score of two selected neighbors in training, in units of the raw scores; None
            for k-subsets, which have none.
        temperature: 1 / beta in training.
        growing: the share of the training in which the transition grows from 0 to its value.
        learned: whether the transition is a parameter.
        normalized: whether a layer norm fixes the scale of the states before they are scored.
    """

    name: str
    transition: float | None = None
    temperature: float = 0.05
    growing: float = 0.0
    learned: bool = False
    normalized: bool = False


TRIALS = (
    Trial("k-subsets"),
    Trial("transition 0.001, as in the paper", 0.001),
    Trial("transition 1", 1.0),
    Trial("transition 0.1", 0.1),
    Trial("transition 0 to 1 over half of the training", 1.0, growing=0.5),
    Trial("learned transition", 0.1, learned=True),
    Trial("temperature 0.5, transition 1", 1.0, temperature=0.5),
    Trial("temperature 0.5, k-subsets", temperature=0.5),
    # Sequential k-subsets count both states of a word, which halves the scores: without a transition
    # they are k-subsets at twice the temperature. So this is what a transition is to be compared with.
    Trial("temperature 0.5, transition 0", 0.0, temperature=0.5),
    Trial("temperature 0.5, transition 4", 4.0, temperature=0.5),
    Trial("layer norm, transition 1", 1.0, normalized=True),
    Trial("layer norm, k-subsets", normalized=True),
)


class GrowingTransition(ShareOfWords):
    """Sequential k-subsets whose transition grows from 0 to ``final`` over so many training steps."""

    def __init__(self, share: float, beta: Temperature, final: float, steps: float) -> None:
        super().__init__(share, beta, 0.0)
        self.final, self.steps, self.taken = final, steps, 0

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        if self.training:
            self.taken += 1
            self.transition = self.final * min(1.0, self.taken / max(self.steps, 1.0))
        return super().forward(scores, mask)


class _Normalized(nn.Module):
    """Pooling of states that have zero mean and unit variance."""

    def __init__(self, pooling: nn.Module, size: int) -> None:
        super().__init__()
        self.norm, self.pooling = nn.LayerNorm(size), pooling

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.pooling(self.norm(x), mask)


def _select(trial: Trial, task: Task, beta: Temperature) -> ShareOfWords:
    if trial.growing and trial.transition is not None:
        steps = trial.growing * task.epochs * _STEPS
        return GrowingTransition(task.share, beta, trial.transition, steps)
    return ShareOfWords(task.share, beta, trial.transition, trial.learned)


def _builder(
    trial: Trial, task: Task, made: list[ShareOfWords]
) -> Callable[[nn.Embedding, int, RationaleOptions], RationaleNetwork]:
    """The paper's network with the trial's selection, which is also put into ``made``."""

    def build(embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> RationaleNetwork:
        beta = Temperature(trial.temperature, options.test_temperature)
        made.append(_select(trial, task, beta))
        size = 2 * options.hidden
        pooling: nn.Module = WordPooling(size, omega=made[-1], head=options.hidden, beta=beta)
        return RationaleNetwork(
            nn.Sequential(embedding, nn.Dropout(options.word_dropout)),
            BiLSTM(embedding.embedding_dim, options.hidden),
            _Normalized(pooling, size) if trial.normalized else pooling,
            nn.Sequential(nn.Dropout(options.dropout), nn.Linear(options.hidden, outputs)),
        )

    return build


def try_out(
    trial: Trial, task: Task = TASK, seed: int = 0, tested: Sequence[float] = ()
) -> dict[str, Any]:
    """What the validation texts say about a trial, by the transition at test time.

    The test texts are read for the transitions in ``tested`` only.
    """
    corpus = load(task, seed)
    made: list[ShareOfWords] = []
    model: Any = estimator_of(_builder(trial, task, made), task, corpus, seed)
    model.fit(
        corpus.training.texts,
        corpus.training.labels.numpy(),
        validation=(corpus.validation.texts, corpus.validation.labels.numpy()),
    )
    (select,) = made
    learned = None
    if select.transition is not None:
        learned = torch.as_tensor(select.transition).detach().item()
    facts = facts_about(model, select, corpus.validation)
    found = {"its own": _judged(model, corpus.validation)}
    if select.transition is None:
        select.transition = 0.0
    for transition in _AT_TEST:
        select.at_test = transition
        found[f"{transition:g}"] = _judged(model, corpus.validation)
    result: dict[str, Any] = {"trial": asdict(trial), "seed": seed, "transition": learned}
    result |= {"facts": facts, "at_test": found}
    for transition in tested:
        select.at_test = transition
        result.setdefault("test", {})[f"{transition:g}"] = _judged(model, corpus.test)
    return result


def _judged(model: RationaleClassifier, part: Part) -> dict[str, float]:
    found = model.rationale(part.texts)
    flags = []
    for each in found:
        own = np.zeros(len(each.tokens), bool)
        own[each.selected] = True
        flags.append(own)
    overlap = human_overlap(flags, part.spans or [])
    return {
        "f1": macro_f1([int(each.prediction) for each in found], part.labels.tolist()),
        "overlap": 0.0 if overlap is None else overlap.f1,
        "span": mean_span(flags),
    }


def facts_about(model: Any, select: ShareOfWords, part: Part) -> dict[str, float]:
    """What decides whether the structure can act: averages over the texts that people marked.

    - ``deviation``: of the raw scores within a text, which a transition is to be compared with;
    - ``correlation``: of the raw scores of neighbors;
    - ``fractional``: words with a weight between 0 and 1 at the temperature of the training, the only
      ones through which a gradient reaches the scores; ``stuck``: the share of texts without any;
    - ``gradient``: the Frobenius norm of the weights' derivative by the raw scores, estimated;
    - ``ranking``: the probability that a word that people marked has a larger raw score than one
      that they did not; ``smoothed``: the same for means over windows of nine words.
    """
    generator, found = torch.Generator().manual_seed(0), []
    for text, marks in zip(part.texts, part.spans or [], strict=True):
        human = np.zeros(len(text), bool)
        for begin, end in marks:
            human[begin:end] = True
        if human.any() and not human.all():
            raw = _raw_scores(model, select, text)
            found.append(_of_text(raw, human) | _of_weights(raw, select, generator))
    if not found:
        return {}
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


def _raw_scores(model: Any, select: ShareOfWords, text: Any) -> Tensor:
    """The scores (L,) of a text's words before they are multiplied with beta."""
    seen: list[Tensor] = []
    hook = select.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    with hook:
        model.rationale([text])
    return seen[0].flatten() / select.beta.test_beta


def _of_text(raw: Tensor, human: Flags) -> dict[str, float]:
    scores = raw.double().numpy()
    near = _windows(scores) / _windows(np.ones(len(scores)))
    centered = scores - scores.mean()
    variance = float(np.mean(np.square(centered)))
    return {
        "deviation": variance**0.5,
        "correlation": float(np.mean(centered[1:] * centered[:-1])) / max(variance, 1e-12),
        "ranking": float(roc_auc_score(human, scores)),
        "smoothed": float(roc_auc_score(human, near)),
    }


def _windows(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sums over windows around each place."""
    return np.convolve(numbers, np.ones(_WINDOW))[_WINDOW // 2 :][: len(numbers)]


def _of_weights(raw: Tensor, select: ShareOfWords, generator: torch.Generator) -> dict[str, float]:
    """How the map of the training treats a text's scores."""
    select.train()
    scores = raw[None, None, None].clone().requires_grad_()
    weights = select(scores * select.beta(), torch.ones_like(scores, dtype=torch.bool))
    noise = torch.randn(weights.shape, generator=generator)
    (slope,) = torch.autograd.grad((weights * noise).sum(), scores)
    select.eval()
    moving = int(((weights > _ROUNDING) & (weights < 1 - _ROUNDING)).sum())
    return {
        "fractional": float(moving),
        "stuck": float(moving == 0),
        "gradient": float(slope.norm()),
    }


def as_markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """A table of trials: means over the seeds, with their standard errors."""
    lines = [
        "| trained with | " + " | ".join(f"{each:g} at test" for each in _AT_TEST) + " |",
        "|---|" + "---|" * len(_AT_TEST),
    ]
    for name in dict.fromkeys(run["trial"]["name"] for run in runs):
        own = [run["at_test"] for run in runs if run["trial"]["name"] == name]
        cells = [name]
        for transition in _AT_TEST:
            seeds = [found[f"{transition:g}"] for found in own]
            overlap, f1 = (_with_error([each[key] for each in seeds]) for key in ("overlap", "f1"))
            span = fmean(each["span"] for each in seeds)
            cells.append(f"{overlap} ({f1}, {span:.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _with_error(numbers: Sequence[float]) -> str:
    error = f" ± {stdev(numbers) / len(numbers) ** 0.5:.3f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.3f}{error}"


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(description="Trials of training with the sequence structure.")
    known = {trial.name: trial for trial in TRIALS}
    parser.add_argument("trials", nargs="*", type=known.__getitem__, help="names; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--test",
        type=float,
        action="append",
        default=[],
        help="judge by the test reviews as well, with this transition",
    )
    parser.add_argument("--table", type=Path, help="print the table of this record; no training")
    return parser


def _main(given: Sequence[str]) -> None:
    options = _arguments().parse_args(given)
    if options.table:
        print(as_markdown(json.loads(options.table.read_text("utf-8"))["runs"]), end="")
        return
    with keeping_memory():
        for trial in options.trials or TRIALS:
            found = try_out(trial, seed=options.seed, tested=options.test)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
