"""Recall: exact patterns with proofs, filled-in cues, values, and a beta that explains itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfy
from hopfy import AssociativeMemory, theory
from hopfy.memory import _fill
from hopfy.memory._budget import RecallBudget
from hopfy.memory._fill import Filled, start_scores, temperature_share
from hopfy.network import Kind
from hopfy.search import PreparedMap, SparseRows

OMEGAS = ["sparsemax", "1.5-entmax", "3-entmax", "2-normmax", "5-normmax"]


def spread(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Patterns of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = 10 ** torch.linspace(-1, 1, count).unsqueeze(1)
    return torch.randn(count, dim, generator=generator) * lengths / dim**0.5


def fill(cues, known, network, max_steps, scratch=256 << 20) -> Filled:
    """From the start weights, as the definition gives them."""
    held = cues.masked_fill(~known, 0.0)
    beta = float(network.beta) * temperature_share(known).unsqueeze(1)
    beta = torch.where(known.all(1, keepdim=True), float(network.beta), beta)
    weights = network.omega(start_scores(held, known, network.memories) * beta)
    weights, budget = SparseRows.from_dense(weights), RecallBudget(scratch)
    return _fill.fill(held, known, weights, network, max_steps, budget)


# ---------------------------------------------------------------------- stored patterns


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_pattern_is_recalled_bit_for_bit_with_a_proof(omega, dtype):
    patterns = spread(30, 8).to(dtype)
    memory = AssociativeMemory(omega)
    memory.add(patterns)
    answer = memory.recall(patterns)
    assert torch.equal(answer.patterns, patterns)
    assert answer.ids.tolist() == list(range(30))
    assert bool(answer.certified.all())
    assert set(answer.kind) == {Kind.PATTERN}
    assert answer.size.tolist() == [1] * 30
    assert memory.uncertifiable == []


def test_inner_products_lose_short_patterns_and_distances_do_not():
    patterns = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    by_product = AssociativeMemory(compare="dot")
    by_product.add(patterns)
    assert by_product.uncertifiable == [0]
    assert by_product.recall(patterns).ids.tolist() == [1, 1, 2]
    by_distance = AssociativeMemory()
    by_distance.add(patterns)
    assert by_distance.uncertifiable == []
    assert by_distance.recall(patterns).ids.tolist() == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 6),
    st.integers(0, 10_000),
    st.sampled_from(OMEGAS),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_a_certificate_is_never_wrong(count, dim, seed, omega, scale):
    """Judged without the library: float64 scores of the lifted rows lead by m / beta."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale
    memory = AssociativeMemory(omega)
    memory.add(patterns)
    queries = torch.randn(5, dim, generator=generator, dtype=torch.float64) * scale
    answer = memory.recall(torch.cat([patterns, queries]))
    assert bool(answer.certified[:count].all())
    network = memory.network
    lead = network.omega.margin / float(network.beta)
    places = answer.ids[answer.certified]
    assert torch.equal(answer.patterns[answer.certified], patterns[places])
    gram = network.memories @ network.memories.T
    rivals = gram.clone().fill_diagonal_(-torch.inf).amax(1)
    assert bool((gram.diagonal() - rivals >= lead * (1 - 1e-9))[places].all())
    states = network.memories[places.unique()]
    torch.testing.assert_close(network.update(states), states, rtol=1e-9, atol=0)


def test_a_cue_closer_to_one_pattern_by_the_lead_recalls_it_with_proof():
    """Euclidean distance decides: ||q - x_j||² - ||q - x_i||² >= 2 m / beta for all j."""
    patterns = spread(25, 6).double()
    memory = AssociativeMemory()
    memory.add(patterns)
    noise = torch.randn(200, 6, dtype=torch.float64) * 0.3
    cues = patterns[torch.arange(200) % 25] + noise
    answer = memory.recall(cues)
    distances = torch.cdist(cues, patterns).square()
    best, nearest = (-distances).topk(2, dim=1)
    clear = (best[:, 0] - best[:, 1]) >= 2.001 * memory.network.omega.margin / memory.beta
    assert int(clear.sum()) > 100
    assert torch.equal(answer.ids[clear], nearest[clear, 0])
    assert bool(answer.certified[clear].all())


def test_a_cue_between_two_patterns_is_a_mixture_and_says_so():
    memory = AssociativeMemory(beta=0.1)
    memory.add(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), values=[[1.0, 10.0], [3.0, 30.0]])
    answer = memory.recall(torch.tensor([0.5, 0.5]))
    assert not bool(answer.certified)
    assert int(answer.size) == 2
    assert answer.patterns.tolist() == [0.5, 0.5]
    assert answer.values.tolist() == [2.0, 20.0]
    assert answer.describe(0) == "a mixture of 2 stored patterns: 0 (50%), 1 (50%)."
    assert repr(answer).endswith("  1 x a mixture of stored patterns (of 2 to 2)")
    ids, weights = answer.weights(0)
    assert ids.tolist() == [0, 1]
    assert weights.tolist() == [0.5, 0.5]
    with pytest.raises(IndexError, match="below 1"):
        answer.describe(1)


def test_softmax_recalls_without_certificates():
    memory = AssociativeMemory("softmax", beta=50.0)
    memory.add(torch.eye(4), values=[5, 6, 7, 8])
    answer = memory.recall(torch.eye(4) + 0.1)
    assert not bool(answer.certified.any())
    assert answer.values.tolist() == [5, 6, 7, 8]
    torch.testing.assert_close(answer.patterns, torch.eye(4), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="margin"):
        AssociativeMemory("softmax")


# ---------------------------------------------------------------------- incomplete cues


@pytest.mark.parametrize("compare", ["distance", "dot"])
@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "2-normmax"])
def test_half_of_a_pattern_recalls_the_whole_with_a_proof(omega, compare):
    patterns = torch.nn.functional.normalize(torch.randn(40, 32), dim=1)
    memory = AssociativeMemory(omega, compare=compare)
    memory.add(patterns)
    for known in (torch.arange(32) < 16, torch.rand(40, 32) < 0.5):
        cues = torch.where(known, patterns, torch.full((), torch.nan))
        answer = memory.recall(cues, known)
        assert torch.equal(answer.patterns, patterns)
        assert bool(answer.certified.all())


def test_what_is_not_known_is_ignored():
    patterns = torch.randn(20, 12)
    memory = AssociativeMemory()
    memory.add(patterns)
    known = torch.rand(20, 12) < 0.4
    noisy = patterns + 0.2 * torch.randn(20, 12)
    one = memory.recall(torch.where(known, noisy, 0.0), known)
    other = memory.recall(torch.where(known, noisy, 1e6 * torch.randn(20, 12)), known)
    assert torch.equal(one.patterns, other.patterns)
    assert torch.equal(one.certified, other.certified)


def test_the_pattern_that_agrees_wins_and_not_the_one_with_mass_in_the_known_part():
    patterns = torch.tensor([[1.0, 0.0, 3.0, 0.0], [3.0, 0.0, 0.0, 1.0]])
    memory = AssociativeMemory(compare="dot")
    memory.add(patterns)
    known = torch.tensor([True, True, False, False])
    cue = torch.tensor([1.0, 0.0, 0.0, 0.0])
    # On zeros instead of unknowns the inner product prefers the second pattern: 3 > 1.
    assert int(memory.recall(cue).ids) == 1
    assert int(memory.recall(cue, known).ids) == 0


def test_a_cue_that_cannot_tell_two_patterns_apart_is_not_certified():
    memory = AssociativeMemory()
    memory.add(torch.tensor([[1.0, 1.0, 5.0], [1.0, 1.0, -5.0], [-4.0, 0.0, 0.0]]))
    answer = memory.recall(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([True, True, False]))
    assert not bool(answer.certified)
    assert sorted(answer.weights(0)[0].tolist()) == [0, 1]
    assert answer.patterns.tolist() == [1.0, 1.0, 0.0]


def test_all_known_is_the_same_as_no_mask_and_nothing_known_is_defined():
    patterns = torch.randn(10, 5)
    queries = torch.randn(7, 5)
    for compare in ("distance", "dot"):
        memory = AssociativeMemory(compare=compare)
        memory.add(patterns)
        plain = memory.recall(queries)
        masked = memory.recall(queries, torch.ones(5, dtype=torch.bool))
        assert torch.equal(plain.ids, masked.ids)
        assert torch.equal(plain.patterns, masked.patterns)
        empty = memory.recall(queries, torch.zeros(5, dtype=torch.bool))
        assert bool(empty.patterns.isfinite().all())
        assert empty.ids.unique().numel() == 1  # no information: the same answer for all


def test_competing_patterns_keep_the_cue_and_never_raise_their_energy():
    rows = torch.randn(15, 8, dtype=torch.float64)
    cues, known = torch.randn(30, 8, dtype=torch.float64), torch.rand(30, 8) < 0.5
    omega, beta = hopfy.Tsallis(1.5), 0.4
    network = hopfy.HopfieldNetwork(rows, omega, beta)
    start, *runs = (fill(cues, known, network, steps) for steps in (0, 1, 2, 5, 40))
    assert all(torch.equal(run.states[known], cues[known]) for run in runs)
    assert float(runs[-1].settled.double().mean()) > 0.8
    fallen = []
    for cue in range(30):
        candidates = start.weights.row(cue)[0]
        rivals = hopfy.HopfieldNetwork(rows[candidates], omega, beta)
        along = torch.stack([rivals.energy(run.states[cue]) for run in (start, *runs)])
        assert bool((along.diff() <= 1e-12).all())
        fallen.append(float(along[0] - along[-1]))
        assert set(runs[-1].weights.row(cue)[0].tolist()) <= set(candidates.tolist())
        # The weights are those that filled the gaps.
        filling = runs[-1].weights.row(cue)[1] @ rows[runs[-1].weights.row(cue)[0]]
        free = ~known[cue]
        torch.testing.assert_close(runs[-1].states[cue][free], filling[free], atol=1e-9, rtol=0)
    assert max(fallen) > 1e-3  # some cues had a way to go


def test_competition_in_parts_changes_nothing():
    rows = torch.randn(15, 8, dtype=torch.float64)
    cues, known = torch.randn(30, 8, dtype=torch.float64), torch.rand(30, 8) < 0.5
    network = hopfy.HopfieldNetwork(rows, "1.5-entmax", 0.4)
    whole = fill(cues, known, network, 40)
    parts = fill(cues, known, network, 40, scratch=1)
    torch.testing.assert_close(whole.states, parts.states)
    torch.testing.assert_close(whole.weights.dense(), parts.weights.dense())


def test_the_start_minimizes_the_cold_energy_over_the_unknown():
    """Judge: at large beta the energy at (c, u) is least at the u of the pattern that is chosen."""
    rows = torch.randn(12, 6, dtype=torch.float64)
    cues, known = torch.randn(20, 6, dtype=torch.float64), torch.rand(20, 6) < 0.5
    beta = 1e6
    network = hopfy.HopfieldNetwork(rows, "sparsemax", beta)
    states = fill(cues, known, network, 0).states
    candidates = torch.where(known.unsqueeze(1), cues.unsqueeze(1), rows)  # (20, 12, 6)
    least = network.energy(candidates.reshape(-1, 6)).reshape(20, 12).amin(1)
    torch.testing.assert_close(network.energy(states), least, rtol=0, atol=1e-6)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("same", [True, False])
def test_the_start_through_an_index_is_the_definition(omega, same):
    rows = torch.randn(1500, 12)
    cues, known = torch.randn(25, 12), torch.rand(25, 12) < 0.6
    known = known[:1].expand(25, 12).clone() if same else known
    held, omega = cues.masked_fill(~known, 0.0), hopfy.omega_from(omega)
    scores = start_scores(held.double(), known, rows.double())
    for beta in (0.01, 1.0, 30.0):
        for directions in (0, 4):
            index = hopfy.search.ExactIndex(rows, directions, scratch=1 << 20)
            mask = known[:1] if same else known
            parts = list(index.parts(held, PreparedMap.of(omega), beta, mask=mask))
            found = SparseRows.assemble(parts).dense()
            torch.testing.assert_close(found, omega(beta * scores), rtol=1e-7, atol=1e-9)


# ---------------------------------------------------------------------- values


def test_floating_values_are_averaged_and_labels_vote():
    patterns = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.4, 0.4]])
    for labels, expected in (([4, 9, 9], 9), ([4, 4, 9], 4)):
        memory = AssociativeMemory(beta=0.2, compare="dot")
        memory.add(patterns, values=labels)
        answer = memory.recall(torch.tensor([[0.5, 0.5]]))
        assert answer.size.tolist() == [3]
        assert answer.values.tolist() == [expected]


def test_values_keep_their_shape_and_dtype():
    patterns = torch.eye(4)
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        values = torch.arange(24).reshape(4, 2, 3).remainder(2).to(dtype)
        memory = AssociativeMemory()
        memory.add(patterns, values)
        answer = memory.recall(patterns.reshape(2, 2, 4))
        assert answer.values.dtype is dtype
        assert torch.equal(answer.values, values.reshape(2, 2, 2, 3))


def test_fit_and_predict_are_a_nearest_pattern_classifier():
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(4, 10)) * 4
    labels = np.arange(80) % 4
    points = centers[labels] + generator.normal(size=(80, 10))
    memory = AssociativeMemory().fit(points[:60], labels[:60])
    assert isinstance(memory, AssociativeMemory)
    assert (memory.predict(points[60:]) == labels[60:]).all()
    memory.fit(points[:10])
    assert len(memory) == 10
    np.testing.assert_array_equal(memory.predict(points[:10]), points[:10])


def test_a_failed_fit_leaves_the_memory_as_it_was():
    memory = AssociativeMemory().fit(torch.eye(3))
    with pytest.raises(ValueError, match="NaN"):
        memory.fit(torch.full((2, 2), torch.nan))
    assert len(memory) == 3


# ---------------------------------------------------------------------- kinds and shapes


def test_answers_come_in_the_kind_of_the_question():
    memory = AssociativeMemory()
    ids = memory.add(np.eye(3, dtype=np.float32), values=torch.arange(3))
    assert isinstance(ids, np.ndarray)
    from_numpy = memory.recall(np.eye(3))
    from_torch = memory.recall(torch.eye(3, dtype=torch.float64).requires_grad_())
    for field in ("patterns", "ids", "values", "certified", "size", "steps"):
        assert isinstance(getattr(from_numpy, field), np.ndarray)
        assert isinstance(getattr(from_torch, field), torch.Tensor)
        np.testing.assert_array_equal(getattr(from_numpy, field), getattr(from_torch, field))
    assert from_numpy.patterns.dtype == np.float32
    assert not from_torch.patterns.requires_grad
    assert isinstance(memory.recall([[1, 0, 0]]).patterns, np.ndarray)
    assert isinstance(from_numpy.weights(0)[1], np.ndarray)
    assert isinstance(memory.predict([1, 0, 0]), np.ndarray)


@pytest.mark.parametrize("rows", [(), (1,), (0,), (2, 3), (2, 0, 3)])
def test_answers_have_the_shape_of_the_question(rows):
    memory = AssociativeMemory()
    memory.add(torch.randn(6, 4), values=torch.randn(6, 2))
    answer = memory.recall(torch.randn(*rows, 4), torch.rand(*rows, 4) < 0.7)
    assert answer.patterns.shape == (*rows, 4)
    assert answer.values.shape == (*rows, 2)
    for field in ("ids", "certified", "size", "steps"):
        assert getattr(answer, field).shape == rows
    assert len(answer) == len(answer.kind) == int(np.prod(rows))
    assert "Recall of" in repr(answer)


@pytest.mark.parametrize("omega", ["sparsemax", "softmax"])
@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_scratch_memory_changes_nothing(omega, compare):
    patterns, values = torch.randn(200, 5), torch.randint(0, 3, (200,))
    queries, known = torch.randn(33, 5), torch.rand(33, 5) < 0.8
    known[:11] = True
    answers = []
    for scratch in (1, 10_000, 256 << 20):
        memory = AssociativeMemory(omega, 0.05, compare=compare, scratch=scratch)
        memory.add(patterns, values)
        answers.append(memory.recall(queries, known))
    for part in answers[:-1]:
        whole = answers[-1]
        assert whole.kind == part.kind
        for field in ("ids", "values", "certified", "size", "steps"):
            assert torch.equal(getattr(whole, field), getattr(part, field)), field
        torch.testing.assert_close(whole.patterns, part.patterns, rtol=1e-5, atol=1e-6)
        ids, weights = part.weights(3)
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
        assert ids[0] == whole.ids[3]


@pytest.mark.parametrize(
    ("queries", "known", "error", "words"),
    [
        (torch.zeros(2, 4), None, ValueError, "memory's 3 coordinates"),
        (torch.tensor(0.0), None, ValueError, "memory's 3 coordinates"),
        (torch.full((2, 3), torch.nan), None, ValueError, "mask=~isnan"),
        (torch.full((2, 3), torch.inf), torch.ones(3, dtype=torch.bool), ValueError, "finite"),
        (torch.zeros(2, 3), torch.ones(3), TypeError, "boolean"),
        (torch.zeros(2, 3), torch.ones(2, dtype=torch.bool), ValueError, "broadcast"),
        (["abc"], None, TypeError, "real numbers"),
        (torch.full((1, 3), 1e38), None, ValueError, "scores fit"),
    ],
)
def test_bad_queries_are_one_message(queries, known, error, words):
    memory = AssociativeMemory()
    memory.add(torch.eye(3))
    with pytest.raises(error, match=words) as caught:
        memory.recall(queries, known)
    assert "\n" not in str(caught.value)


def test_an_empty_memory_says_so_everywhere():
    memory = AssociativeMemory()
    assert len(memory) == 0
    assert memory.ids.tolist() == []
    assert list(memory.chunks()) == []
    for ask in (
        lambda: memory.recall(torch.zeros(3)),
        lambda: memory.predict(torch.zeros(3)),
        lambda: memory.explain(),
        lambda: memory.beta,
        lambda: memory.network,
        lambda: memory.uncertifiable,
    ):
        with pytest.raises(ValueError, match="got an empty one; add some first"):
            ask()
    assert "0 patterns" in repr(memory)
    memory.add(torch.empty(0, 3))
    with pytest.raises(ValueError, match="empty"):
        memory.recall(torch.zeros(3))


def test_a_zero_query_is_defined():
    patterns = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    by_distance = AssociativeMemory()
    by_distance.add(patterns)
    assert int(by_distance.recall(torch.zeros(2)).ids) == 1  # the nearest to the origin
    by_product = AssociativeMemory(compare="dot", beta=0.01)
    by_product.add(patterns)
    answer = by_product.recall(torch.zeros(2), max_steps=1)
    torch.testing.assert_close(answer.patterns, patterns.mean(0))
    assert int(answer.size) == 3


def test_one_pattern_answers_every_query():
    memory = AssociativeMemory()
    memory.add(torch.tensor([2.0, 1.0]))
    answer = memory.recall(torch.randn(5, 2))
    assert torch.equal(answer.patterns, torch.tensor([[2.0, 1.0]]).expand(5, 2))
    assert bool(answer.certified.all())
    assert "1 of 1 patterns are fixed points" in memory.explain()


# ---------------------------------------------------------------------- beta, and why


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_automatic_beta_certifies_all_that_can_be(omega, compare):
    memory = AssociativeMemory(omega, compare=compare)
    memory.add(spread(40, 5))
    rows = memory.network.memories
    proven = theory.proves_fixed_point(
        rows, torch.arange(40).unsqueeze(1), memory.network.omega, memory.beta
    )
    hopeless = torch.zeros(40, dtype=torch.bool)
    hopeless[memory.uncertifiable] = True
    assert torch.equal(proven, ~hopeless)
    if compare == "distance":
        assert not bool(hopeless.any())
    delta = theory.separations(rows).value[~hopeless].min()
    assert memory.beta == pytest.approx(2 * memory.network.omega.margin / float(delta))


def test_automatic_beta_follows_the_patterns():
    memory = AssociativeMemory()
    memory.add(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    far = memory.beta
    close = memory.add(torch.tensor([4.0, 0.5]))
    near = memory.beta
    assert near > 10 * far
    memory.remove(close)
    assert memory.beta == pytest.approx(far)


def test_duplicates_are_reported_with_their_ids_and_spoil_nothing_else():
    patterns = torch.randn(6, 4)
    memory = AssociativeMemory()
    memory.add(patterns, ids=[10, 11, 12, 13, 14, 15])
    beta = memory.beta
    memory.add(patterns[2:3], ids=[99])
    assert memory.uncertifiable == [12, 99]
    assert memory.beta >= beta / 2
    text = memory.explain()
    assert "Patterns 12, 99 can never be certified: stored twice" in text
    assert "5 of 7 patterns are fixed points" in text
    answer = memory.recall(patterns)
    assert answer.certified.tolist() == [True, True, False, True, True, True]
    torch.testing.assert_close(answer.patterns, patterns)
    assert sorted(answer.weights(2)[0].tolist()) == [12, 99]
    memory.remove([12])
    assert memory.uncertifiable == []


def test_only_duplicates_are_still_a_memory():
    memory = AssociativeMemory()
    memory.add(torch.ones(3, 2))
    assert memory.uncertifiable == [0, 1, 2]
    answer = memory.recall(torch.zeros(2))
    torch.testing.assert_close(answer.patterns, torch.ones(2))
    assert not bool(answer.certified)
    zeros = AssociativeMemory()
    zeros.add(torch.zeros(2, 2))
    assert zeros.recall(torch.ones(2)).patterns.tolist() == [0, 0]


def test_patterns_closer_than_the_dtype_can_tell_are_reported():
    base = torch.full((1, 50), 100.0)
    twin = base.clone()
    twin[0, 0] += 1e-5
    memory = AssociativeMemory()
    memory.add(torch.cat([base, twin, -base]))
    assert set(memory.uncertifiable) == {0, 1}
    assert np.isfinite(memory.beta)


def test_a_given_beta_is_explained_and_says_what_would_do():
    memory = AssociativeMemory(beta=0.5)
    memory.add(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 30.0]]))
    assert memory.beta == 0.5
    text = memory.explain()
    assert "beta = 0.5 was given, so Delta_i >= 2 is needed" in text
    assert "Patterns 0, 1 would be recalled exactly with beta >=" in text
    assert memory.uncertifiable == []


def test_the_memory_introduces_itself():
    memory = AssociativeMemory("1.5-entmax", beta=2)
    memory.add(torch.eye(3))
    assert repr(memory) == (
        "AssociativeMemory(3 patterns, omega=Tsallis(alpha=1.5), beta=2, compare='distance')"
    )
