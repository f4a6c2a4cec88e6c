"""What is trained on which texts, and how."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METHODS", "OTHERS", "OURS", "Task"]

OURS = ("k-subsets", "sequential k-subsets")
OTHERS = (
    "SPECTRA",
    "HardKuma",
    "sparsemax",
    "fusedmax",
    "SFE, top-k",
    "SFE, contiguous",
    "SFE with baseline, top-k",
    "SFE with baseline, contiguous",
    "Gumbel, top-k",
    "Gumbel, contiguous",
    "softmax",
    "BiLSTM",
)
METHODS = (*OURS, *OTHERS)


@dataclass(frozen=True)
class Task:
    """One data set and the settings of all methods on it.

    The defaults are the paper's (its text, and the settings of Guerreiro & Martins that it names).

    Attributes:
        data: the name of the texts; see `hopfy.paper.rationale._texts`.
        share: of a text's words in its rationale.
        temperature: 1 / beta while training.
        transition: the score of two selected neighbors.
        test_transition: the same at test time, in units of the raw scores. The public code multiplies
            the transition with 1 / temperature = 1000 twice at test time, the scores once: its 0.001
            is 1 there.
        own_network: whether sequential k-subsets trains one; otherwise it reads the scores of the
            network that was trained with k-subsets.
        vectors: the frozen word vectors: ``"glove"`` in 50 dimensions, ``"glove_100d"`` in 100, or
            ``"minilm"``, the word pieces of a sentence model in 100; with a ``+`` side by side.
        word_dropout: of the word vectors.
        dropout: of the pooled vector.
        hidden: features of the LSTM in each direction.
        lr, weight_decay: the learning rate of Adam, and what it takes off the parameters.
        decay: what the learning rate is multiplied with after every epoch; 0 for the estimators' default.
        epochs: at most.
        min_epochs: training does not stop before.
        patience: epochs without a better validation score before training stops.
        as_reference_code: whether the network is that of the public code, see
            `hopfy.paper.rationale._reference`; for k-subsets and sequential k-subsets only.
        training: how many of the training texts are used, drawn at random; 0 for all.
        test: the same for the test texts.
        longest: of a longer text only the last words are read; 0 for any length.
        judged: test texts for sufficiency and comprehensiveness.
        seeds: how many runs of every method.
        methods: which; those of `METHODS` by default.
    """

    data: str
    share: float
    temperature: float = 0.05
    transition: float = 0.001
    test_transition: float = 1.0
    own_network: bool = True
    vectors: str = "glove"
    word_dropout: float = 0.1
    dropout: float = 0.5
    hidden: int = 200
    lr: float = 1e-4
    weight_decay: float = 1e-4
    decay: float = 0.0
    epochs: int = 60
    min_epochs: int = 1
    patience: int = 5
    as_reference_code: bool = False
    training: int = 0
    test: int = 0
    longest: int = 0
    judged: int = 1_000
    seeds: int = 5
    methods: tuple[str, ...] = METHODS
