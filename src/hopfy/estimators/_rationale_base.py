"""What the estimators with rationales share: everything but the targets."""

from __future__ import annotations

import copy
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from hopfy._checks import check_count
from hopfy._files.tensors import FileFormat
from hopfy._warnings import NoKnownWordsWarning
from hopfy.estimators import _files
from hopfy.estimators._highlight import Rationale, Rationales, as_spans, html_page
from hopfy.estimators._rationale_files import (
    NOT_SAVED,
    OWN_VECTORS,
    OwnMethodError,
    parameter_table,
    parameters_from,
    words_from,
    words_tensor,
)
from hopfy.estimators._rationale_network import (
    RationaleModule,
    RationaleOptions,
    build_network,
    words_to_select,
)
from hopfy.estimators._settings import Grouped, Selection, Settings, Words
from hopfy.estimators._text import EncodedTexts, SimilarBatches, Text, Vocabulary, as_texts
from hopfy.estimators._training import (
    MOVED_TO_TRAINING,
    Labeled,
    ReduceOnPlateau,
    ResolvedTraining,
    Training,
    hold_out,
    seeded,
    train,
)
from hopfy.estimators._vectors import (
    WordVectors,
    frozen_embedding,
    learned_embedding,
    load_vectors,
)

__all__ = ["RationaleEstimator"]

# Words of a batch with its padding, when nothing is trained: some tens of megabytes of states.
_WORDS_AT_ONCE = 1 << 15
# The same in training, where an LSTM keeps some kilobytes for each word: half a gigabyte.
_WORDS_TO_TRAIN = 1 << 16
_WORDS_KEY = "vocabulary"
_Self = TypeVar("_Self", bound="RationaleEstimator")
_Array = np.ndarray[Any, Any]


class RationaleEstimator(Grouped):
    """Texts to a network's outputs and weights; a subclass says what the outputs mean."""

    _kind: FileFormat
    _no_words: str
    network_: RationaleModule
    options_: RationaleOptions
    vocabulary_: Vocabulary

    _groups: ClassVar[Mapping[str, type[Settings]]] = {
        "selection": Selection,
        "words": Words,
        "training": Training,
    }
    _moved: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(Selection().get_params(), "selection"),
        **dict.fromkeys(Words().get_params(), "words"),
        **dict.fromkeys(MOVED_TO_TRAINING, "training"),
    }

    def __init__(
        self,
        *,
        method: str | Callable[..., RationaleModule] = "sequential k-subsets",
        share: float = 0.2,
        selection: Selection | None = None,
        vectors: Any = 50,
        words: Words | None = None,
        hidden: int = 200,
        word_dropout: float = 0.1,
        dropout: float = 0.5,
        training: Training | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.share = share
        self.selection = selection
        self.vectors = vectors
        self.words = words
        self.hidden = hidden
        self.word_dropout = word_dropout
        self.dropout = dropout
        self.training = training
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self: _Self, X: Any, y: Any, *, validation: tuple[Any, Any] | None = None) -> _Self:
        """Learn from texts and their targets.

        Args:
            X: texts: strings, which are tokenized, or lists of tokens.
            y: one target for each.
            validation: texts and targets that decide when to stop; by default a share of X and y.
        """
        if hasattr(self, "network_"):  # if this fit fails, no half of it is taken for a model
            del self.network_
        self.options_, settings = self._options(), self._training()
        words = self._group("words")
        texts = as_texts(X)
        targets = self._learn_targets(y, len(texts))
        held = as_texts(validation[0]) if validation is not None else []
        more = self._targets(validation[1], len(held)) if validation is not None else targets[:0]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed):
            embedding = self._learn_words(texts, words)
            network = build_network(self.method, embedding, self._outputs, self.options_)
            data = EncodedTexts.of([*texts, *held], self.vocabulary_)
            training, stopping = self._parts(data, targets, len(held), settings, seed)
            every = torch.cat([targets, more])
            self.history_ = train(
                network,
                _Objective(self._loss(targets), network),
                Labeled(data, every, training),
                settings,
                validation=Labeled(data, every, stopping) if len(stopping) else None,
                score=self._score if len(stopping) else None,
                order=SimilarBatches(data.lengths[training], settings.batch_size, _WORDS_TO_TRAIN),
                device=self.device,
                progress=bool(self.verbose),
            )
        self.network_ = network.eval()
        self.n_iter_ = len(self.history_)
        return self

    def rationale(self, X: Any) -> Rationales:
        """The words that each prediction was made from, see `Rationale`."""
        texts, data = self._texts(X)
        outputs, weights = self._explain(data)
        counts = (
            words_to_select(torch.from_numpy(data.lengths), self.options_.share).long().tolist()
        )
        answers = self._answers(self._numbers(outputs, data))
        return Rationales(
            Rationale(text, row, k, *answer)
            for text, row, k, answer in zip(texts, weights, counts, answers, strict=True)
        )

    def with_transition(self: _Self, transition: float) -> _Self:
        """A copy of the fitted model that selects with sequential k-subsets at this transition.

        The network and its scores stay the same, only the selection from them changes: a larger
        transition gives longer spans. For models of the methods ``"k-subsets"`` and
        ``"sequential k-subsets"``.
        """
        check_is_fitted(self, "network_")
        if self.method not in ("k-subsets", "sequential k-subsets"):
            raise ValueError(
                "expected a model of the method 'k-subsets' or 'sequential k-subsets', got "
                f"{self.method!r}."
            )
        made = copy.copy(self)
        made.method = "sequential k-subsets"
        made.selection = clone(self._group("selection")).set_params(test_transition=transition)
        made.options_ = made._options()
        network = build_network(made.method, self._blank_embedding(), self._outputs, made.options_)
        state = network.state_dict() | self.network_.state_dict()
        network.load_state_dict(state)
        made.network_ = network.to(self.device).eval()
        return made

    def explain_html(self, X: Any, human_spans: Any = None, *, title: str = "Rationales") -> str:
        """A page with the texts and their highlighted rationales; nothing in it is executed.

        Args:
            X: texts.
            human_spans: for each text the words that people marked, as spans (start, stop) of its
                tokens, or None; the page then underlines them and shows mismatches in red.
            title: of the page.
        """
        found = self.rationale(X)
        if human_spans is None:
            return html_page(found, title)
        spans = as_spans(human_spans, [len(each.tokens) for each in found])
        return html_page(
            (
                Rationale(one.text, one.weights, one.k, one.prediction, one.probability, human)
                for one, human in zip(found, spans, strict=True)
            ),
            title,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; nothing in it is executable.

        A ``method`` of your own is not in the file: give it to `load` again. Nor are the device and
        whether to show progress: a loaded model is on the CPU until ``set_params`` moves it.
        """
        check_is_fitted(self, "network_")
        parameters = {
            name: parameter_table(name, value)
            for name, value in self.get_params(deep=False).items()
            if name not in NOT_SAVED
        }
        settings = {
            "parameters": parameters,
            "vector_size": self._vector_size,
            "learned": self._learned,
            "targets": self._targets_table(),
        }
        words = {_WORDS_KEY: words_tensor(self.vocabulary_)}
        _files.save(path, self._kind, self.network_, settings, words)

    @classmethod
    def load(
        cls: type[_Self],
        path: str | os.PathLike[str],
        *,
        method: Callable[..., RationaleModule] | None = None,
    ) -> _Self:
        """A model from its file; ``method`` only if it was saved with one of your own."""
        file, others = _files.open_file(path, cls._kind)
        try:
            made = cls(**parameters_from(file, cls().get_params(deep=False), cls._groups, method))
            made.options_, _ = made._options(), made._training()
            lowercase = bool(made._group("words").lowercase)
            made.vocabulary_ = words_from(others[_WORDS_KEY], lowercase)
            made._load_targets(file.settings["targets"])
            size, learned = file.settings["vector_size"], file.settings["learned"]
            if type(size) is not int or not 1 <= size < 2**20 or type(learned) is not bool:
                raise ValueError("expected the size of the word vectors.")
        except OwnMethodError as error:
            raise ValueError(str(error)) from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise file.error(f"its settings are not those of a {cls.__name__}") from None

        made._vector_size, made._learned = size, learned

        def network() -> RationaleModule:
            return build_network(made.method, made._blank_embedding(), made._outputs, made.options_)

        made.network_ = cast(RationaleModule, _files.build(file, network)).to(made.device)
        if made.vectors == OWN_VECTORS:
            made.vectors = made._stored_vectors()
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    # What the targets are: decided below.

    _outputs: int

    @abstractmethod
    def _learn_targets(self, y: Any, count: int) -> Tensor: ...

    @abstractmethod
    def _targets(self, y: Any, count: int) -> Tensor: ...

    @abstractmethod
    def _loss(self, targets: Tensor) -> _LossOfTexts: ...

    @abstractmethod
    def _score(self, outputs: Tensor, targets: Tensor) -> float: ...

    @abstractmethod
    def _numbers(self, outputs: Tensor, data: EncodedTexts) -> _Array: ...

    @abstractmethod
    def _answers(self, numbers: _Array) -> list[tuple[Any, float | None]]: ...

    @abstractmethod
    def _targets_table(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_targets(self, table: Any) -> None: ...

    def _options(self) -> RationaleOptions:
        selection = self._group("selection")
        return RationaleOptions(
            share=self.share,
            transition=selection.transition,
            learn_transition=bool(selection.learn_transition),
            test_transition=selection.test_transition,
            temperature=selection.temperature,
            test_temperature=selection.test_temperature,
            hidden=self.hidden,
            word_dropout=self.word_dropout,
            dropout=self.dropout,
        )

    def _training(self) -> ResolvedTraining:
        training: Training = self._group("training")
        return training.resolved(
            max_epochs=30,
            patience=5,
            clip=5.0,
            schedule=ReduceOnPlateau(0.97, 5),
            optimizer="adam",
        )

    def _learn_words(self, texts: Sequence[Text], known: Words) -> nn.Embedding:
        """The vocabulary, and the vectors of its words."""
        learned = isinstance(self.vectors, int | np.integer) and not isinstance(self.vectors, bool)
        self._learned = learned
        check_count(known.min_count, "min_count")
        check_count(known.keep_words, "keep_words", 0)
        if learned:
            check_count(self.vectors, "vectors")
        least, lowercase = known.min_count if learned else 1, bool(known.lowercase)
        words = Vocabulary.of(texts, min_count=least, lowercase=lowercase)
        if learned:
            self.vocabulary_ = words
            embedding = learned_embedding(words, int(self.vectors))
        else:
            vectors = load_vectors(self.vectors, words.words, known.keep_words)
            self.vocabulary_ = Vocabulary(vectors.words, lowercase=lowercase)
            embedding = frozen_embedding(vectors)
        self._vector_size = embedding.embedding_dim
        return embedding

    def _parts(
        self,
        data: EncodedTexts,
        targets: Tensor,
        held: int,
        settings: ResolvedTraining,
        seed: int,
    ) -> tuple[_Array, _Array]:
        """Numbers of the texts to train on and of those that decide when to stop."""
        known = data.known() > 0
        count = len(data) - held
        training = np.flatnonzero(known[:count])
        if not len(training):
            raise ValueError(
                "expected at least one training text with a word that has a vector, got "
                f"{count} texts without; check the texts, the vectors, and min_count in words."
            )
        if len(training) < count:
            warnings.warn(
                f"{count - len(training)} of {count} training texts have no known word and are "
                "left out.",
                NoKnownWordsWarning,
                stacklevel=3,
            )
        if held:
            stopping = count + np.flatnonzero(known[count:])
        else:
            labels = None if targets.is_floating_point() else targets.numpy()[training]
            kept, out = hold_out(len(training), settings.validation_share, seed, labels)
            training, stopping = training[kept], training[out]
        # Similar lengths beside each other: less padding in every validation.
        return training, stopping[np.argsort(data.lengths[stopping], kind="stable")]

    def _blank_embedding(self) -> nn.Embedding:
        """An embedding of the vocabulary's shape, whose vectors come from elsewhere."""
        embedding = learned_embedding(self.vocabulary_, self._vector_size)
        embedding.weight.requires_grad_(self._learned)
        return embedding

    def _stored_vectors(self) -> WordVectors:
        """The vectors of a loaded model, for another fit."""
        shape = (len(self.vocabulary_), self._vector_size)
        matrix = next(
            part.weight
            for part in self.network_.modules()
            if isinstance(part, nn.Embedding) and part.weight.shape == shape
        )
        return WordVectors(self.vocabulary_.words, matrix.detach()[2:].cpu().numpy())

    def _texts(self, X: Any) -> tuple[list[Text], EncodedTexts]:
        """Checked texts and their numbers; a warning if some have nothing to predict from."""
        check_is_fitted(self, "network_")
        texts = as_texts(X)
        data = EncodedTexts.of(texts, self.vocabulary_)
        lost = np.flatnonzero(data.known() == 0)
        if len(lost):
            numbers = ", ".join(str(number) for number in lost[:5])
            warnings.warn(
                f"{len(lost)} of {len(texts)} texts have no known word (number {numbers}"
                f"{', ...' if len(lost) > 5 else ''}): {self._no_words}, and the rationale is "
                "empty.",
                NoKnownWordsWarning,
                stacklevel=3,
            )
        return texts, data

    def _batches(self, data: EncodedTexts) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        self.network_.eval()
        for numbers in data.by_length(_WORDS_AT_ONCE):
            batch = data.batch(numbers)
            yield numbers, {name: each.to(self.device) for name, each in batch.items()}

    def _explain(self, data: EncodedTexts) -> tuple[Tensor, list[_Array]]:
        """Outputs (N, C), and the weights of each text; none where no word is known."""
        outputs = torch.zeros(len(data), self._outputs)
        weights: list[_Array] = [np.empty(0)] * len(data)
        known = data.known() > 0
        with torch.no_grad():
            for numbers, batch in self._batches(data):
                found, rows = self.network_.explain(**batch)
                outputs[numbers] = found.float().cpu()
                for number, row in zip(numbers, rows.cpu().numpy(), strict=True):
                    weights[number] = row[: data.lengths[number]] * known[number]
        return outputs, weights

    def _forward(self, data: EncodedTexts) -> Tensor:
        outputs = torch.zeros(len(data), self._outputs)
        with torch.no_grad():
            for numbers, batch in self._batches(data):
                outputs[numbers] = self.network_(**batch).float().cpu()
        return outputs


class _LossOfTexts(Protocol):
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor: ...


class _Objective(nn.Module):
    """What the network makes of the losses of the texts in its latest pass."""

    def __init__(self, loss: _LossOfTexts, network: RationaleModule) -> None:
        super().__init__()
        self.loss = loss
        # Only the method: as a part of this module the network's parameters would be trained twice.
        self._objective = network.objective

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._objective(self.loss.each(outputs, targets))
