"""The claims of the paper's Section 5, each judged by one rule on recorded results.

``python -m hopfy.paper.claims docs/results`` prints the table of the documentation. A rule is stated
before it is applied, holds for all of its cases or fails, and reads numbers only: the JSON files that
the experiments leave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from hopfy.paper._published import MIL_TASKS
from hopfy.paper.mil._recorded import runs_of

__all__ = ["CLAIMS", "Claim", "Recorded", "Verdict", "as_markdown", "judge"]

_ENTMAX = ("1-entmax", "1.5-entmax", "2-entmax")
_SPARSE = ("1.5-entmax", "sparsemax", "2-normmax", "5-normmax")
_SUBSETS = ("2-subsets", "3-subsets", "5-subsets")
_METHODS = ("softmax", *_SPARSE, *_SUBSETS)
_ANIMALS = ("fox", "tiger", "elephant")
_TEXTS = {"sst": "SST", "ag_news": "AgNews", "imdb": "IMDB", "beer": "Beer"}
_OURS, _BASELINES = ("k-subsets", "sequential k-subsets"), ("HardKuma", "SPECTRA")
_QUERIES = 10_000
_NEAR = 2.0
"""Points within which a mean counts as near the best one."""
_EQUAL = 0.01
"""One unit of the digits that Table 3 prints."""


class Verdict(NamedTuple):
    """What was measured, and whether the claim holds; None where nothing was recorded."""

    ours: str
    holds: bool | None


_UNKNOWN = Verdict("not measured", None)


@dataclass(frozen=True)
class Recorded:
    """Results of the experiments, by the names of their files in ``folder``."""

    folder: Path

    def read(self, name: str) -> Any:
        """The recorded results, or None if there are none."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        found = json.loads(path.read_text("utf-8"))
        return found.get("results", found)


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, the rule that decides it, and its judge.

    Attributes:
        section: where it stands.
        text: what is claimed.
        rule: when it holds.
        source: the recorded results that are read.
        judge: from these results to the verdict.
    """

    section: str
    text: str
    rule: str
    source: str
    judge: Callable[[Any], Verdict]


def judge(recorded: Recorded) -> list[tuple[Claim, Verdict]]:
    """Every claim with its verdict."""
    found = []
    for claim in CLAIMS:
        results = recorded.read(claim.source)
        found.append((claim, _UNKNOWN if results is None else claim.judge(results)))
    return found


def as_markdown(judged: Sequence[tuple[Claim, Verdict]]) -> str:
    """A table with one row for each claim."""
    lines = [
        "| section | claim | holds if | ours | verdict |",
        "|---|---|---|---|---|",
    ]
    words = {True: "holds", False: "**fails**", None: "not measured"}
    for claim, verdict in judged:
        cells = (claim.section, claim.text, claim.rule, verdict.ours, words[verdict.holds])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# --- Section 5.1: basins of attraction ------------------------------------------------------------


def _more_single_patterns(fig3: Mapping[str, Any]) -> Verdict:
    shares: dict[float, dict[str, float]] = {}
    for entry in fig3["measured"]:
        if entry["map"] in _ENTMAX:
            shares.setdefault(entry["beta"], {})[entry["map"]] = entry["single_percent"]
    rising = [_rises([own[name] for name in _ENTMAX]) for own in shares.values()]
    ours = "; ".join(
        f"beta {beta:g}: " + ", ".join(f"{own[name]:.0f}" for name in _ENTMAX) + "%"
        for beta, own in sorted(shares.items())
    )
    return Verdict(ours, all(rising))


def _uniform_averages(fig3: Mapping[str, Any]) -> Verdict:
    even = [entry["evenness"] for entry in fig3["measured"] if entry["map"] == "5-normmax"]
    return Verdict(f"least evenness {min(even):.3f}", min(even) > 0.99)


# --- Section 5.2: metastable states ---------------------------------------------------------------


def _percent(table1: Mapping[str, Any], omega: str, beta: float) -> Mapping[str, float]:
    for column in table1["columns"]:
        if column["omega"] == omega and column["beta"] == beta:
            percent: Mapping[str, float] = column["percent"]
            return percent
    raise KeyError(f"{omega} at beta {beta:g}")


def _single_patterns_with_alpha(table1: Mapping[str, Any]) -> Verdict:
    shares = [[_percent(table1, omega, beta)["1"] for omega in _ENTMAX] for beta in (0.1, 1.0)]
    ours = "; ".join(", ".join(f"{share:.1f}" for share in own) + "%" for own in shares)
    return Verdict(ours + _of_queries(table1), all(map(_rises, shares)))


def _small_states_of_normmax(table1: Mapping[str, Any]) -> Verdict:
    small = []
    for omega in ("2-normmax", "5-normmax"):
        percent = _percent(table1, omega, 0.1)
        small.append(sum(percent[str(size)] for size in range(2, 11)))
    ours = f"{small[0]:.1f}% and {small[1]:.1f}%" + _of_queries(table1)
    return Verdict(ours, small[1] > small[0])


def _states_of_size_k(table1: Mapping[str, Any]) -> Verdict:
    shares, right = [], True
    for beta in (0.1, 1.0):
        for k in (2, 4, 8):
            percent = _percent(table1, f"{k}-subsets", beta)
            right &= max(percent, key=lambda size: percent[size]) == str(k)
            shares.append(percent[str(k)])
    return Verdict(f"at least {min(shares):.1f}% of the queries" + _of_queries(table1), right)


def _of_queries(table1: Mapping[str, Any]) -> str:
    """Said where not all of the paper's queries were run."""
    queries = table1["queries"]
    return "" if queries == _QUERIES else f" (the first {queries:,} of 10,000 queries)"


# --- Section 5.3: multiple instance learning ------------------------------------------------------


def _column(mil: Mapping[str, Any], task: str) -> dict[str, float]:
    """Means of the paper's eight methods on a task."""
    found = {}
    for cell in mil["cells"]:
        runs = runs_of(cell)
        if cell["task"] == task and cell["method"] in _METHODS and runs is not None:
            found[cell["method"]] = runs.mean
    return found


def _complete(judge: Callable[[Any], Verdict], *tasks: str) -> Callable[[Any], Verdict]:
    """A judge of Table 2 that waits until all methods have been run on these tasks."""

    def judged(mil: Mapping[str, Any]) -> Verdict:
        missing = [task for task in tasks if len(_column(mil, task)) < len(_METHODS)]
        return Verdict(f"not complete: {', '.join(missing)}", None) if missing else judge(mil)

    return judged


def _best(means: Mapping[str, float]) -> str:
    return max(means, key=lambda method: means[method])


def _softmax_is_best_for_one(mil: Mapping[str, Any]) -> Verdict:
    means = _column(mil, "K=1")
    other = _best({method: mean for method, mean in means.items() if method != "softmax"})
    ours = f"softmax {means['softmax']:.1f}, the best other one ({other}) {means[other]:.1f}"
    return Verdict(ours, means["softmax"] > means[other])


def _normmax_is_near_the_best(mil: Mapping[str, Any]) -> Verdict:
    behind = {}
    for task in MIL_TASKS:
        means = _column(mil, task)
        behind[task] = max(means.values()) - means["5-normmax"]
    worst = max(behind, key=lambda task: behind[task])
    return Verdict(
        f"{behind[worst]:.1f} points behind on {worst.capitalize()}", behind[worst] <= _NEAR
    )


def _matching_subsets_are_best(mil: Mapping[str, Any]) -> Verdict:
    best = {k: _best(_column(mil, f"K={k}")) for k in (2, 3, 5)}
    ours = ", ".join(f"K = {k}: {method}" for k, method in best.items())
    return Verdict(ours, all(method == f"{k}-subsets" for k, method in best.items()))


def _subsets_beat_sparse_pooling(mil: Mapping[str, Any]) -> Verdict:
    won = []
    for animal in _ANIMALS:
        means = _column(mil, animal)
        if max(means[m] for m in _SUBSETS) > max(means[m] for m in ("softmax", *_SPARSE)):
            won.append(animal.capitalize())
    return Verdict(", ".join(won) or "on none", len(won) >= 2)


# --- Section 5.4: rationales ----------------------------------------------------------------------


def _mean_of(rationale: Mapping[str, Any], data: str, method: str, *path: str) -> float | None:
    """A number of a method on a data set, averaged over its runs; None if it was not run."""
    found = []
    for run in rationale["cells"].get(data, {}).get(method, []):
        value: Any = run
        for name in path:
            value = (value or {}).get(name)
        if value is None:
            return None
        found.append(value)
    return fmean(found) if found else None


def _as_good_as_the_baselines(rationale: Mapping[str, Any]) -> Verdict:
    leads, missing = {}, []
    for data, name in _TEXTS.items():
        sign = -1 if data == "beer" else 1
        scores = {m: _mean_of(rationale, data, m, "score") for m in (*_OURS, *_BASELINES)}
        known = {method: sign * score for method, score in scores.items() if score is not None}
        if len(known) < len(scores):
            missing.append(name)
        else:
            leads[name] = min(known[m] for m in _OURS) - max(known[m] for m in _BASELINES)
    ours = ", ".join(f"{name} {lead:+.3f}" for name, lead in leads.items())
    failed = any(lead < -_EQUAL for lead in leads.values())
    if missing:
        ours = "; ".join([*([ours] if ours else []), f"not complete: {', '.join(missing)}"])
    return Verdict(ours, False if failed else None if missing else True)


def _overlap_with_people(rationale: Mapping[str, Any]) -> Verdict:
    methods = rationale["cells"].get("eraser_movies", {})
    found = {m: _mean_of(rationale, "eraser_movies", m, "overlap", "f1") for m in methods}
    known = {method: value for method, value in found.items() if value is not None}
    ours = ", ".join(f"{method} {value:.3f}" for method, value in known.items())
    missing = [method for method in (_OURS[1], *_BASELINES) if method not in known]
    if missing:
        return Verdict(f"{ours}; not run: {', '.join(missing)}", None)
    return Verdict(ours, _best(known) == _OURS[1])


def _longer_spans(rationale: Mapping[str, Any]) -> Verdict:
    spans = {}
    for data, name in {**_TEXTS, "eraser_movies": "ERASER movies"}.items():
        one, other = (_mean_of(rationale, data, method, "span") for method in _OURS)
        if one is None or other is None:
            return Verdict(f"{name} is not complete", None)
        spans[name] = one, other
    ours = "; ".join(f"{name} {one:.2f}, {other:.2f}" for name, (one, other) in spans.items())
    return Verdict(ours, all(other > one for one, other in spans.values()))


def _rises(numbers: Sequence[float]) -> bool:
    return all(a <= b for a, b in pairwise(numbers))


CLAIMS = (
    Claim(
        "5.1",
        "As alpha increases, entmax converges more often to a single pattern.",
        "for every beta, the share of start points that end at one pattern does not fall "
        "over alpha = 1, 1.5, 2",
        "fig3",
        _more_single_patterns,
    ),
    Claim(
        "5.1",
        "Normmax tends to converge to uniform averages of some patterns.",
        "the mixtures of 5-normmax have an evenness above 0.99 at every beta",
        "fig3",
        _uniform_averages,
    ),
    Claim(
        "5.2",
        "Entmax retrieves single patterns for higher alpha.",
        "at both beta, the share of states of size 1 does not fall over alpha = 1, 1.5, 2",
        "table1",
        _single_patterns_with_alpha,
    ),
    Claim(
        "5.2",
        "Normmax stabilizes in small but persistent metastable states as alpha increases.",
        "at beta 0.1, 5-normmax has more states of sizes 2 to 10 than 2-normmax",
        "table1",
        _small_states_of_normmax,
    ),
    Claim(
        "5.2",
        "k-subsets retrieve associations of k patterns.",
        "size k is the most frequent one for k = 2, 4, 8 at both beta",
        "table1",
        _states_of_size_k,
    ),
    Claim(
        "5.3",
        "For K = 1 softmax outperforms the remaining methods.",
        "softmax has the largest mean of the eight methods",
        "mil-laptop",
        _complete(_softmax_is_best_for_one, "K=1"),
    ),
    Claim(
        "5.3",
        "Normmax is near optimal on all data sets.",
        "5-normmax is at most 2 points behind the best of the eight methods in every column",
        "mil-laptop",
        _complete(_normmax_is_near_the_best, *MIL_TASKS),
    ),
    Claim(
        "5.3",
        "For K > 1 k-subsets are best when k = K.",
        "K-subsets have the largest mean of the eight methods for K = 2, 3 and 5",
        "mil-laptop",
        _complete(_matching_subsets_are_best, "K=2", "K=3", "K=5"),
    ),
    Claim(
        "5.3",
        "SparseMAP pooling surpasses the sparse variants on two of three benchmarks.",
        "on at least two animals the best k-subsets mean is above all means of entmax and normmax",
        "mil-laptop",
        _complete(_subsets_beat_sparse_pooling, *_ANIMALS),
    ),
    Claim(
        "5.4",
        "The Hopfield rationalizers are equal or slightly superior to HardKuma and SPECTRA on all "
        "data sets.",
        "on each of SST, AgNews, IMDB and Beer both are at most 0.01 worse than the better of the "
        "two baselines",
        "rationale-laptop",
        _as_good_as_the_baselines,
    ),
    Claim(
        "5.4",
        "Sequential k-subsets overlap more with human rationales than the baselines.",
        "the largest overlap F1 on ERASER movies, which stand in for Beer's annotations, is theirs",
        "rationale-laptop",
        _overlap_with_people,
    ),
    Claim(
        "5.4",
        "The sequential model encourages adjacent words.",
        "on every data set its spans are longer than those of k-subsets",
        "rationale-laptop",
        _longer_spans,
    ),
)


if __name__ == "__main__":
    print(as_markdown(judge(Recorded(Path(sys.argv[1])))), end="")
