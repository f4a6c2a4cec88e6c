"""Networks that predict from a few words and say which.

Every one has ``explain(ids, lengths)``, which returns logits (B, C) and weights (B, L),
``forward(ids, lengths)`` for the logits alone, and ``objective(losses)``, what is minimized, by
default the mean loss and a ``penalty()``. `RationaleNetwork` is the paper's; another way to select
words is another ``pooling`` for it, or another module with these methods. ``build_network`` finds both
by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy._checks import as_positive, check_count
from hopfy.nn import HopfieldPooling, Sizes
from hopfy.omega import Omega

__all__ = [
    "METHODS",
    "BiLSTM",
    "RationaleModule",
    "RationaleNetwork",
    "RationaleOptions",
    "ShareOfWords",
    "Temperature",
    "WordPooling",
    "build_network",
    "hopfield_network",
    "sequential_words",
    "words_to_select",
]


@dataclass(frozen=True)
class RationaleOptions:
    """What the methods can be told; each takes what it needs.

    Attributes:
        share: of a text's words that the rationale has; see `words_to_select`.
        transition: the score of two selected neighbors.
        learn_transition: whether it is trained.
        test_transition: another one when the network is not training; None for the same.
        temperature: 1 / beta while training; it divides all scores, the transition's too.
        test_temperature: 1 / beta afterward.
        hidden: features of the LSTM in each direction, and of the association space.
        word_dropout: the share of the word vectors' entries that is dropped while training.
        dropout: the same for the pooled vector.
    """

    share: float = 0.2
    transition: float = 0.001
    learn_transition: bool = False
    test_transition: float | None = None
    temperature: float = 0.1
    test_temperature: float = 1e-3
    hidden: int = 200
    word_dropout: float = 0.1
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in ("share", "temperature", "test_temperature"):
            as_positive(getattr(self, name), name)
        if self.share > 1:
            raise ValueError(f"expected share above 0 and at most 1, got {self.share}.")
        for name in ("word_dropout", "dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"expected {name} in [0, 1), got {value!r}.")
        check_count(self.hidden, "hidden")
        for name in ("transition", "test_transition"):
            value = getattr(self, name)
            if name == "test_transition" and value is None:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
                raise ValueError(f"expected {name} to be a number, got {value!r}.")


class RationaleModule(nn.Module):
    """What all networks share: logits alone, and nothing added to the loss."""

    def explain(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, C) and weights (B, L) of texts as numbers (B, L), padded behind ``lengths``."""
        raise NotImplementedError

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, C)."""
        return self.explain(ids, lengths)[0]

    def penalty(self) -> Tensor | float:
        """What the latest forward pass adds to the training loss."""
        return 0.0

    def objective(self, losses: Tensor) -> Tensor:
        """What is minimized, given the loss (B,) of each text in the latest forward pass."""
        return losses.mean() + self.penalty()


class RationaleNetwork(RationaleModule):
    r"""Logits ``head(pooling(encoder(embedding(ids))))`` (the paper's Sec. 5.4).

    Args:
        embedding: ids (B, L) to vectors (B, L, D).
        encoder: vectors and lengths to states (B, L, E), such as `BiLSTM`.
        pooling: states and a mask (B, L) to a vector (B, P) and weights (B, L), such as `WordPooling`.
        head: (B, P) to logits (B, C).

    >>> import torch
    >>> embedding, head = nn.Embedding(9, 5, padding_idx=0), nn.Linear(4, 2)
    >>> pooling = WordPooling(8, omega="sparsemax", head=4)
    >>> network = RationaleNetwork(embedding, BiLSTM(5, 4), pooling, head)
    >>> logits, weights = network.explain(torch.tensor([[4, 2, 5], [3, 0, 0]]), torch.tensor([3, 1]))
    >>> logits.shape, weights[1].detach()
    (torch.Size([2, 2]), tensor([1., 0., 0.]))
    """

    def __init__(
        self, embedding: nn.Module, encoder: nn.Module, pooling: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.pooling, self.head = pooling, head

    def explain(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = word_mask(ids, lengths)
        states = self.encoder(self.embedding(ids), lengths)
        pooled, weights = self.pooling(states, mask)
        return self.head(pooled), weights


def word_mask(ids: Tensor, lengths: Tensor) -> Tensor:
    """True on the words (B, L), False on the padding behind them."""
    return torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]


class BiLSTM(nn.Module):
    """States (B, L, 2 * hidden) of an LSTM in both directions; padding takes no part.

    Each text is turned round within its own length for the second direction, so that both read its
    words before its padding. On a CPU this is faster than packed sequences, whose backward pass
    grows with the square of the length.

    >>> import torch
    >>> BiLSTM(5, 4)(torch.randn(2, 3, 5), torch.tensor([3, 1])).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.onward = nn.LSTM(size, hidden, batch_first=True)
        self.backward_ = nn.LSTM(size, hidden, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        ends = lengths[:, None]
        turned = torch.where(places < ends, ends - 1 - places, places).unsqueeze(-1)
        onward, _ = self.onward(x)
        backward, _ = self.backward_(x.gather(1, turned.expand_as(x)))
        return torch.cat([onward, backward.gather(1, turned.expand_as(backward))], -1)


class Temperature(nn.Module):
    """beta = 1 / temperature, another one when the network is not training.

    >>> beta = Temperature(0.1, 1e-3)
    >>> beta(), beta.eval()()
    (10.0, 1000.0)
    """

    def __init__(self, train: float, test: float) -> None:
        super().__init__()
        self.train_beta = 1 / as_positive(train, "temperature")
        self.test_beta = 1 / as_positive(test, "test_temperature")

    def forward(self) -> float:
        return self.train_beta if self.training else self.test_beta

    def extra_repr(self) -> str:
        return f"train={1 / self.train_beta:g}, test={1 / self.test_beta:g}"


def words_to_select(lengths: Tensor, share: float) -> Tensor:
    """round(share * length), at least 1 and at most all words.

    >>> words_to_select(torch.tensor([0, 1, 7, 25]), 0.2)
    tensor([0., 1., 1., 5.], dtype=torch.float64)
    """
    lengths = lengths.double()  # in single precision 0.7 * 25 is no longer the product one expects
    return torch.minimum((share * lengths).round().clamp_min(1), lengths)


class ShareOfWords(nn.Module):
    """The map to weights that sum to `words_to_select` of each text: (sequential) k-subsets.

    Args:
        share: of the words of each text.
        beta: scales the transition as the scores were scaled before they come here.
        transition: the score of two selected neighbors; None for k-subsets without order.
        learn: train the transition.
        at_test: another transition when the module is not training.
    """

    transition: Tensor | float | None

    def __init__(
        self,
        share: float,
        beta: Temperature,
        transition: float | None = None,
        learn: bool = False,
        at_test: float | None = None,
    ) -> None:
        super().__init__()
        self.share, self.beta, self.transition, self.at_test = share, beta, transition, at_test
        if learn and transition is not None:
            del self.transition  # a parameter cannot take the place of a number
            self.transition = nn.Parameter(torch.tensor(float(transition)))

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights of scores (B, heads, queries, L)."""
        mask = mask.expand_as(scores)
        k = words_to_select(mask.sum(-1), self.share)
        if self.transition is None:
            return F.ksubsets(scores, k, mask=mask)
        keep = self.training or self.at_test is None
        transition = self.transition if keep else self.at_test
        return F.sequential_ksubsets(scores, k, transition * self.beta(), mask=mask)

    def extra_repr(self) -> str:
        fixed = isinstance(self.transition, float)
        at_test = "" if self.at_test is None else f", at_test={self.at_test}"
        return (
            f"share={self.share}" + (f", transition={self.transition}" if fixed else "") + at_test
        )


def sequential_words(options: RationaleOptions, beta: Temperature) -> ShareOfWords:
    """Sequential k-subsets as the options say."""
    return ShareOfWords(
        options.share,
        beta,
        options.transition,
        options.learn_transition,
        options.test_transition,
    )


class WordPooling(nn.Module):
    r"""Hopfield pooling of states (B, L, D) with one learned query and one head.

    Args:
        size: D.
        omega: how scores become weights: a regularizer, its name or a module such as `ShareOfWords`.
        head: features of the association space and of the output.
        beta: inverse temperature: a number or `Temperature`.

    The weights of a rationale sum to k; the pooled vector is divided by their sum, so that it does not scale
    with the length of a text.
    """

    def __init__(
        self,
        size: int,
        *,
        omega: Omega | str | nn.Module,
        head: int = 200,
        beta: float | nn.Module = 1.0,
    ) -> None:
        super().__init__()
        sizes = Sizes(queries=head, memories=size, head=head)
        self.pooling = HopfieldPooling(sizes, omega=omega, beta=beta)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled vector (B, head) and the weights (B, L)."""
        parts = self.pooling.hopfield
        # q (K x) = (K' q) x and W sum_i y_i x_i = sum_i y_i W x_i: with one query it is the query that
        # is projected, and what was pooled, instead of every word. The bias of K adds the same to
        # all scores, which no weights see.
        query = parts.queries_in(self.pooling.queries) @ parts.memories_in.weight
        x = x.unsqueeze(1)
        found, weights = parts.association(
            query.unsqueeze(0), x, x, mask[:, None, None], need_weights=True
        )
        weights = weights.flatten(1)
        total = weights.sum(-1, keepdim=True)
        mean = found.flatten(1) / total.clamp_min(1e-6)
        pooled = parts.out(parts.values_in(mean))
        return torch.where(mask.any(-1, keepdim=True), pooled, 0.0), weights


def hopfield_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions, omega: Any = None
) -> RationaleNetwork:
    """The paper's network: word vectors, LSTM in both directions, Hopfield pooling, linear head.

    Args:
        embedding: of the words.
        outputs: how many logits.
        options: sizes, temperatures, dropout.
        omega: a map for the pooling instead of sequential k-subsets: its name, an `Omega` or a module.
    """
    beta = Temperature(options.temperature, options.test_temperature)
    if omega is None:
        omega = sequential_words(options, beta)
    elif omega == "k-subsets":
        omega = ShareOfWords(options.share, beta)
    return RationaleNetwork(
        nn.Sequential(embedding, nn.Dropout(options.word_dropout)),
        BiLSTM(embedding.embedding_dim, options.hidden),
        WordPooling(2 * options.hidden, omega=omega, head=options.hidden, beta=beta),
        nn.Sequential(nn.Dropout(options.dropout), nn.Linear(options.hidden, outputs)),
    )


def _ksubsets(embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> RationaleNetwork:
    return hopfield_network(embedding, outputs, options, "k-subsets")


Factory = Callable[[nn.Embedding, int, RationaleOptions], RationaleModule]

METHODS: dict[str, Factory] = {
    "sequential k-subsets": hopfield_network,
    "k-subsets": _ksubsets,
}


def build_network(
    method: str | Factory, embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> RationaleModule:
    """A network by the name of its method, or from a function of the same three arguments."""
    if isinstance(method, str):
        from hopfy.estimators._rationalizers import COMPARED  # which build on this module
        from hopfy.estimators._stochastic_rationalizers import STOCHASTIC

        methods = METHODS | COMPARED | STOCHASTIC
        if method not in methods:
            known = ", ".join(repr(name) for name in methods)
            raise ValueError(
                f"expected method to be one of {known}, or a function; got {method!r}."
            )
        method = methods[method]
    if not callable(method):
        raise TypeError(
            "expected method to be a name or a function (embedding, outputs, options) -> network, "
            f"got {type(method).__name__}."
        )
    network: object = method(embedding, outputs, options)
    if not isinstance(network, RationaleModule):
        raise TypeError(
            f"expected the method to make a RationaleModule, got {type(network).__name__}."
        )
    return network
