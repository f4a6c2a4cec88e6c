"""What every layer promises: masks, omegas, k per sample, steps, and errors for bad input."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import hopfy
from hopfy import functional as F
from hopfy.nn import (
    Entmax,
    Hopfield,
    HopfieldAttention,
    HopfieldDecoderLayer,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
    KSubsetsMap,
    LearnableAlpha,
    LearnableBeta,
    Normmax,
    ShareOfLength,
    Sizes,
    Softmax,
    Sparsemax,
)

OMEGAS = ["softmax", "sparsemax", "1.5-entmax", "1.3-entmax", "5-normmax", "2-normmax", "3-subsets"]
LENGTHS = torch.tensor([7, 4, 1, 6])
MASK = torch.arange(7) < LENGTHS[:, None]


def randomized(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def gradients(layer: nn.Module, output: torch.Tensor) -> list[torch.Tensor]:
    parameters = list(layer.parameters())
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return list(
        torch.autograd.grad(output, parameters, cotangent, allow_unused=True, retain_graph=True)
    )


# -- the definition ---------------------------------------------------------------------------


@pytest.mark.parametrize("omega", OMEGAS)
def test_hopfield_is_its_formula(omega: str) -> None:
    layer = randomized(Hopfield(8, heads=2, omega=omega, beta=0.7))
    queries, memories, values = torch.randn(3, 4, 8), torch.randn(3, 6, 8), torch.randn(3, 6, 8)
    q, x, v = layer.queries_in(queries), layer.memories_in(memories), layer.values_in(values)
    found = []
    for head in (slice(0, 4), slice(4, 8)):
        weights = hopfy.omega_from(omega)(0.7 * q[..., head] @ x[..., head].mT)
        found.append(weights @ v[..., head])
    torch.testing.assert_close(layer(queries, memories, values), layer.out(torch.cat(found, -1)))


def test_memories_default_to_queries_and_values_to_memories() -> None:
    layer = randomized(Hopfield(8, heads=2))
    x, y = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    torch.testing.assert_close(layer(x), layer(x, x, x))
    torch.testing.assert_close(layer(x, y), layer(x, y, y))


def test_without_size_nothing_is_learned() -> None:
    layer = Hopfield(omega="sparsemax", beta=3.0)
    assert not list(layer.parameters())
    queries, memories = torch.randn(2, 8), torch.randn(5, 8)
    torch.testing.assert_close(
        layer(queries, memories), F.sparsemax(3.0 * queries @ memories.mT) @ memories
    )


def test_sizes_may_all_differ() -> None:
    sizes = Sizes(queries=5, memories=6, values=7, head=3, value_head=4, output=9)
    layer = Hopfield(sizes, heads=2)
    output, weights = layer(
        torch.randn(2, 3, 5), torch.randn(2, 8, 6), torch.randn(2, 8, 7), need_weights=True
    )
    assert output.shape == (2, 3, 9)
    assert weights.shape == (2, 2, 3, 8)


def test_no_batch_and_many_batch_dimensions() -> None:
    layer = randomized(Hopfield(8, heads=2))
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(layer(x)[1, 2], layer(x[1, 2]))
    mask = torch.rand(2, 3, 5) > 0.3
    torch.testing.assert_close(layer(x, mask=mask)[1, 2], layer(x[1, 2], mask=mask[1, 2]))


def test_memories_without_batch_serve_every_sample() -> None:
    layer = randomized(Hopfield(8, heads=2))
    queries, memories = torch.randn(4, 3, 8), torch.randn(6, 8)
    torch.testing.assert_close(layer(queries, memories), layer(queries, memories.expand(4, 6, 8)))


# -- masks ------------------------------------------------------------------------------------


STRUCTURED = [
    ShareOfLength(0.4),
    ShareOfLength(0.4, functools.partial(hopfy.structures.SequentialKSubsets, transition=0.3)),
    hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(3, transition=0.3)),
]


@pytest.mark.parametrize("omega", [*OMEGAS, *STRUCTURED, LearnableAlpha(2)])
def test_pooling_of_a_padded_batch_is_pooling_one_bag_at_a_time(omega: object) -> None:
    pool = randomized(HopfieldPooling(8, heads=2, queries=3, omega=omega)).double()
    bags = torch.randn(4, 7, 8).double().requires_grad_()
    together = pool(bags, mask=MASK)
    alone = torch.cat([pool(bag[None, :n]) for bag, n in zip(bags, LENGTHS.tolist(), strict=True)])
    torch.testing.assert_close(together, alone)
    for a, b in zip(gradients(pool, together), gradients(pool, alone), strict=True):
        torch.testing.assert_close(a, b)


# Not every map ignores what all scores have in common, such as the bias of the memories.
@pytest.mark.parametrize("omega", [*OMEGAS, hopfy.SparseMAP(hopfy.structures.AtMostK(2))], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalize", [True, False, ("values",)], ids=str)
@pytest.mark.parametrize("queries", [1, 3])
def test_pooling_before_projecting_changes_nothing(
    omega: object, bias: bool, normalize: object, queries: int
) -> None:
    options = {"bias": bias, "normalize": normalize, "beta": torch.tensor([0.5, 2])}
    pool = randomized(HopfieldPooling(8, 2, queries=queries, omega=omega, **options)).double()
    assert pool._few_queries()
    x = torch.randn(4, 7, 8, dtype=torch.float64)
    output, weights = pool(x, MASK, need_weights=True)
    expected, plain = pool.hopfield(pool.queries, x, mask=MASK, need_weights=True)
    torch.testing.assert_close(weights, plain)
    torch.testing.assert_close(output, expected.flatten(-2))
    for ours, theirs in zip(gradients(pool, output), gradients(pool, expected), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("omega", OMEGAS)
def test_pairwise_and_head_masks(omega: str) -> None:
    layer = randomized(Hopfield(8, heads=2, omega=omega))
    queries, memories = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    pairs = torch.rand(3, 4, 6) > 0.4
    output, weights = layer(queries, memories, mask=pairs, need_weights=True)
    assert (weights.masked_select(~pairs[:, None].expand_as(weights)) == 0).all()
    same, _ = layer(queries, memories, mask=pairs[:, None].expand(3, 2, 4, 6), need_weights=True)
    torch.testing.assert_close(output, same)
    for_all = layer(queries, memories, mask=pairs[:1])
    torch.testing.assert_close(for_all[0], output[0])
    by_head = torch.rand(3, 2, 4, 6) > 0.4
    _, weights = layer(queries, memories, mask=by_head, need_weights=True)
    assert (weights[~by_head] == 0).all()


@pytest.mark.parametrize("omega", [*OMEGAS, *STRUCTURED])
def test_nothing_to_select_gives_zeros_and_zero_gradient(omega: object) -> None:
    pool = randomized(HopfieldPooling(8, heads=2, omega=omega))
    bags = torch.randn(4, 7, 8, requires_grad=True)
    mask = MASK.clone()
    mask[1] = False
    output, weights = pool(bags, mask=mask, need_weights=True)
    assert (output[1] == 0).all()
    assert (weights[1] == 0).all()
    assert output[0].abs().min() > 0
    (grad,) = torch.autograd.grad(output[1].sum(), bags, retain_graph=True)
    assert (grad == 0).all()
    assert all((g == 0).all() for g in gradients(pool, output[1]) if g is not None)
    (grad,) = torch.autograd.grad(output.sum(), bags)
    assert grad.isfinite().all()
    assert (grad[1] == 0).all()


@pytest.mark.parametrize("omega", OMEGAS)
def test_attention_with_every_key_masked(omega: str) -> None:
    attention = randomized(HopfieldAttention(8, 2, batch_first=True, omega=omega))
    x = torch.randn(2, 5, 8, requires_grad=True)
    padding = torch.tensor([[True] * 5, [False] * 5])
    for need in (True, False):
        output, _ = attention(x, x, x, key_padding_mask=padding, need_weights=need)
        assert (output[0] == 0).all()
        (grad,) = torch.autograd.grad(output.square().sum(), x)
        assert (grad[0] == 0).all()
        assert grad[1].abs().max() > 0


# -- k ----------------------------------------------------------------------------------------


def test_k_larger_than_a_bag_takes_all() -> None:
    pool = randomized(HopfieldPooling(8, omega="5-subsets"))
    bags = torch.randn(4, 7, 8)
    _, weights = pool(bags, mask=MASK, need_weights=True)
    torch.testing.assert_close(weights.sum(-1)[:, 0, 0], LENGTHS.clamp(max=5).float())
    _, weights = pool(bags[:, :3], need_weights=True)
    assert (weights == 1).all()


@pytest.mark.parametrize("masked", [True, False])
def test_k_per_sample(masked: bool) -> None:
    pool = randomized(HopfieldPooling(8, heads=2, omega="3-subsets"))
    bags, k = torch.randn(4, 7, 8), torch.tensor([1.0, 2.0, 3.0, 9.0])
    omega = hopfy.SparseMAP(hopfy.structures.KSubsets(k[:, None, None]))
    mask = MASK if masked else None
    _, weights = pool(bags, mask=mask, need_weights=True, omega=omega)
    wanted = torch.minimum(k, LENGTHS if masked else torch.tensor(7))
    torch.testing.assert_close(weights.sum(-1), wanted[:, None, None].expand(4, 2, 1))
    beside = hopfy.SparseMAP(hopfy.structures.KSubsets(k[:, None, None, None]))
    _, same = pool(bags, mask=mask, need_weights=True, omega=beside)
    torch.testing.assert_close(weights, same)


def test_share_of_length_follows_each_length() -> None:
    omega = ShareOfLength(0.4)
    weights = omega(torch.randn(4, 7), MASK)
    torch.testing.assert_close(weights.sum(-1), torch.tensor([3.0, 2.0, 1.0, 2.0]))
    torch.testing.assert_close(omega(torch.randn(5, 3), dim=0).sum(0), torch.full((3,), 2.0))
    assert omega.margin == 1.0
    torch.testing.assert_close(omega.value(weights), weights.square().sum(-1) / 2)


def test_share_of_length_takes_any_structure() -> None:
    structure = functools.partial(hopfy.structures.SequentialKSubsets, transition=0.5)
    scores = torch.randn(4, 7)
    weights = ShareOfLength(0.4, structure)(scores, MASK)
    for row, k in enumerate([3, 2, 1, 2]):
        n = int(LENGTHS[row])
        wanted = F.sequential_ksubsets(scores[row, :n], k, 0.5)
        torch.testing.assert_close(weights[row, :n], wanted)


@pytest.mark.parametrize("transition", [0.0, 0.5])
def test_sequential_k_larger_than_a_bag_takes_all(transition: float) -> None:
    omega = hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(5, transition=transition))
    pool = randomized(HopfieldPooling(8, omega=omega))
    _, weights = pool(torch.randn(4, 7, 8), mask=MASK, need_weights=True)
    torch.testing.assert_close(weights.sum(-1)[:, 0, 0], LENGTHS.clamp(max=5).float())
    assert (weights[1, 0, 0, :4] == 1).all()


def test_share_of_length_checks_its_share() -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1, got 20"):
        ShareOfLength(20)
    with pytest.raises(TypeError, match="a number"):
        ShareOfLength("20%")


# -- parameters of the association ------------------------------------------------------------


def test_learnable_alpha_stays_in_its_range_and_learns() -> None:
    omega = LearnableAlpha(heads=3, init=1.5)
    torch.testing.assert_close(omega.alpha, torch.full((3,), 1.5))
    layer = randomized(Hopfield(12, heads=3, omega=omega))
    x = torch.randn(2, 5, 12)
    layer(x).square().sum().backward()
    assert omega.raw.grad.abs().min() > 0
    with torch.no_grad():
        omega.raw.copy_(torch.tensor([-1e9, 0.0, 1e9]))
    assert omega.alpha.tolist() == [1.0, 1.5, 2.0]
    _, weights = layer(x, need_weights=True)
    scores = (
        hopfy.nn._heads.split(layer.queries_in(x), 3)
        @ hopfy.nn._heads.split(layer.memories_in(x), 3).mT
        / 2.0
    )
    for head, alpha in enumerate([1.0, 1.5, 2.0]):
        torch.testing.assert_close(weights[:, head], F.entmax(scores[:, head], alpha))


def test_learnable_alpha_of_normmax() -> None:
    omega = LearnableAlpha(2, init=5.0, bounds=(1.5, 10.0), family=hopfy.Norm)
    scores = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(omega(scores), F.normmax(scores, 5.0), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="> 1"):
        LearnableAlpha(2, init=5.0, bounds=(1.0, 10.0), family=hopfy.Norm)
    with pytest.raises(ValueError, match="strictly between"):
        LearnableAlpha(init=2.5)


@pytest.mark.parametrize(
    "beta",
    [0.5, torch.tensor([0.5, 0.5]), nn.Parameter(torch.full((2,), 0.5)), LearnableBeta(2, 0.5)],
)
def test_beta_number_per_head_or_learnable(beta: object) -> None:
    layer = randomized_except_beta(Hopfield(8, heads=2, beta=beta))
    same = Hopfield(8, heads=2, beta=0.5)
    same.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x), same(x))
    if isinstance(beta, nn.Parameter | nn.Module):
        layer(x).sum().backward()
        (learned,) = [p for n, p in layer.named_parameters() if n.startswith("association.beta")]
        assert learned.grad.abs().min() > 0


def randomized_except_beta(layer: nn.Module) -> nn.Module:
    for name, parameter in layer.named_parameters():
        if "beta" not in name:
            nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize("layer", [Hopfield, HopfieldPooling, HopfieldLookup])
def test_the_old_name_of_normalize_is_an_error_that_names_the_new(layer: type) -> None:
    with pytest.raises(TypeError, match=r"expected normalize=.*it is called normalize now"):
        layer(8, normalise=True)


def test_normalize_chooses_the_inputs() -> None:
    everything = Hopfield(8, normalize=True)
    assert all(
        isinstance(part[0], nn.LayerNorm)
        for part in (everything.queries_in, everything.memories_in, everything.values_in)
    )
    some = Hopfield(8, normalize=("queries", "memories"))
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(some(3 * x, 4 * x, x), some(x, x, x), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(some(x, x, 3 * x), some(x, x, x))
    with pytest.raises(ValueError, match="got 'keys'"):
        Hopfield(8, normalize="keys")


def test_dropout_acts_on_the_weights_while_training_only() -> None:
    layer = Hopfield(omega="softmax", dropout=0.5)
    queries, memories = torch.randn(200, 8), torch.randn(6, 8)
    values = torch.eye(6)
    output, (weights,) = layer(queries, memories, values, need_weights=True)
    dropped = output == 0
    assert 0.4 < dropped.float().mean() < 0.6
    torch.testing.assert_close(output[~dropped], 2 * weights[~dropped])
    torch.testing.assert_close(layer.eval()(queries, memories, values), weights)


# -- steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("omega", OMEGAS)
def test_steps_are_updates_of_the_network(omega: str) -> None:
    layer = Hopfield(omega=omega, beta=2.0, max_steps=3)
    state, memories = torch.randn(4, 8).double(), torch.randn(6, 8).double()
    queries = state
    for _ in range(3):
        state = hopfy.omega_from(omega)(2.0 * state @ memories.mT) @ memories
    torch.testing.assert_close(layer(queries, memories), state)


def test_a_query_stops_on_its_own() -> None:
    """Neither the other queries nor the other samples change where a query stops."""
    layer = Hopfield(omega="softmax", beta=1.0, max_steps=30, tol=0.05)
    queries, memories = torch.randn(5, 3, 8), torch.randn(5, 6, 8)
    together = layer(queries, memories)
    for sample in range(5):
        for query in range(3):
            alone = layer(queries[sample, query : query + 1], memories[sample])
            torch.testing.assert_close(together[sample, query : query + 1], alone)
    without = Hopfield(omega="softmax", beta=1.0, max_steps=30)(queries, memories)
    assert (together - without).abs().max() > 1e-4


def test_stops_early() -> None:
    calls = []

    class Counting(Softmax):
        def forward(self, scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            calls.append(1)
            return F.sparsemax(scores, mask=mask)

    layer = Hopfield(omega=Counting(), beta=10.0, max_steps=1000)
    layer(torch.randn(4, 8), torch.randn(6, 8))
    assert len(calls) < 20  # sparsemax reaches a fixed point exactly


# -- modules like any other -------------------------------------------------------------------


def layers() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    x = torch.randn(2, 5, 8)
    return {
        "Hopfield": (Hopfield(8, 2, normalize=True, beta=LearnableBeta(2)), (x,)),
        "tensor beta": (Hopfield(8, 2, beta=torch.tensor([0.5, 2.0])), (x,)),
        "HopfieldPooling": (HopfieldPooling(8, 2, queries=3, omega="2-subsets"), (x,)),
        "HopfieldLookup": (HopfieldLookup(8, 2, memories=4, values=True), (x,)),
        "HopfieldAttention": (HopfieldAttention(8, 2, omega=LearnableAlpha(2)), (x, x, x)),
        "HopfieldEncoderLayer": (HopfieldEncoderLayer(8, 2, 16), (x,)),
        "HopfieldDecoderLayer": (HopfieldDecoderLayer(8, 2, 16), (x, x)),
    }


def first(output: object) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("name", layers())
def test_state_dict_round_trip_and_deepcopy(name: str) -> None:
    layer, inputs = layers()[name]
    layer = randomized(layer).eval()
    fresh = layers()[name][0].eval()
    assert not torch.allclose(first(layer(*inputs)), first(fresh(*inputs)))
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(first(layer(*inputs)), first(fresh(*inputs)))
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(first(layer(*inputs)), first(twin(*inputs)))
    randomized(twin)
    assert not torch.allclose(first(layer(*inputs)), first(twin(*inputs)))
    assert repr(layer).startswith(type(layer).__name__)


@pytest.mark.parametrize("omega", OMEGAS)
def test_gradients_are_exact(omega: str) -> None:
    layer = randomized(Hopfield(4, heads=2, omega=omega, beta=1.0, max_steps=2)).double()
    queries = torch.randn(2, 3, 4).double().requires_grad_()
    memories = torch.randn(2, 5, 4).double().requires_grad_()
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    assert torch.autograd.gradcheck(
        lambda q, m: layer(q, m, mask=mask), (queries, memories), atol=1e-4
    )


TWINS = [
    (Softmax(), F.softmax),
    (Sparsemax(), F.sparsemax),
    (Entmax(1.3), functools.partial(F.entmax, alpha=1.3)),
    (Normmax(3), functools.partial(F.normmax, alpha=3)),
    (KSubsetsMap(2), functools.partial(F.ksubsets, k=2)),
    (Entmax(torch.tensor(1.7)), functools.partial(F.entmax, alpha=1.7)),
]


@pytest.mark.parametrize(("module", "function"), TWINS)
def test_module_twins(module: nn.Module, function: object) -> None:
    scores, mask = torch.randn(3, 5), torch.rand(3, 5) > 0.3
    torch.testing.assert_close(nn.Sequential(module)(scores), function(scores))
    torch.testing.assert_close(module(scores, mask), function(scores, mask=mask))
    module = copy.deepcopy(module)
    module.dim = 0
    torch.testing.assert_close(module(scores), function(scores, dim=0))


def test_module_twin_trains_a_parameter() -> None:
    module = Entmax(nn.Parameter(torch.tensor(1.5)))
    assert [name for name, _ in module.named_parameters()] == ["alpha"]
    module(torch.randn(5)).square().sum().backward()
    assert module.alpha.grad != 0
    with pytest.raises(ValueError, match="expected alpha >= 1"):
        Entmax(0.5)


# -- errors for bad input ------------------------------------------------------------------

X = torch.randn(2, 5, 8)
BAD_CALLS = {
    "features": (lambda: Hopfield(8)(torch.randn(2, 5, 7)), ValueError, "8 features, got 7"),
    "unprojected features": (
        lambda: Hopfield()(torch.randn(5, 7), torch.randn(4, 8)),
        ValueError,
        "got 7 and 8",
    ),
    "heads do not divide": (lambda: Hopfield(heads=3)(X), ValueError, "3 heads divide, got 8"),
    "batch": (lambda: Hopfield(8)(X, torch.randn(3, 5, 8)), ValueError, "same batch"),
    "values": (lambda: Hopfield(8)(X, X, torch.randn(2, 4, 8)), ValueError, "5 memories, got 4"),
    "one dimension": (lambda: Hopfield(8)(torch.randn(8)), ValueError, "count, features"),
    "no tensor": (lambda: Hopfield(8)([1.0]), TypeError, "torch.Tensor, got list"),
    "mask type": (lambda: Hopfield(8)(X, mask=torch.ones(2, 5)), TypeError, "boolean tensor"),
    "mask shape": (
        lambda: Hopfield(8)(X, mask=torch.ones(2, 4, dtype=torch.bool)),
        ValueError,
        r"\(2, 5\) \(memories\).*got \(2, 4\)",
    ),
    "mask dimensions": (
        lambda: Hopfield(8)(X, mask=torch.ones(5, dtype=torch.bool)),
        ValueError,
        r"got \(5,\)",
    ),
    "omega": (lambda: Hopfield(8, omega="hardmax"), ValueError, "got 'hardmax'"),
    "omega type": (lambda: Hopfield(8, omega=1.5), TypeError, "got 1.5"),
    "beta": (lambda: Hopfield(8, beta=-1.0), ValueError, "not negative, got -1"),
    "beta type": (lambda: Hopfield(8, beta="1"), TypeError, "got '1'"),
    "beta heads": (lambda: Hopfield(8, 2, beta=torch.ones(3)), ValueError, r"one per head \(2\)"),
    "steps": (lambda: Hopfield(8, max_steps=0), ValueError, "at least 1, got 0"),
    "tol": (lambda: Hopfield(8, tol=-1.0), ValueError, "0 or more, got -1"),
    "dropout": (lambda: Hopfield(8, dropout=1.0), ValueError, r"\[0, 1\), got 1"),
    "heads": (lambda: Hopfield(8, heads=0), ValueError, "at least 1, got 0"),
    "size": (lambda: Hopfield(8, heads=3), ValueError, "3 heads divide, got 8"),
    "size type": (lambda: Hopfield(8.0), TypeError, "integer, got 8.0"),
    "negative size": (
        lambda: Hopfield(Sizes(8, memories=-1)),
        ValueError,
        "memories to be positive",
    ),
    "normalize nothing": (lambda: Hopfield(normalize=True), ValueError, "without a size"),
    "no queries": (lambda: HopfieldPooling(8, queries=0), ValueError, "at least 1, got 0"),
    "attention features": (
        lambda: HopfieldAttention(8, 2)(X, X, torch.randn(2, 5, 6)),
        ValueError,
        "value with 8 features, got 6",
    ),
    "attention batch": (
        lambda: HopfieldAttention(8, 2, batch_first=True)(X, *[torch.randn(3, 5, 8)] * 2),
        ValueError,
        "batch size of query",
    ),
    "attention dimensions": (
        lambda: HopfieldAttention(8, 2)(X, X[0], X[0]),
        ValueError,
        "3-d, 2-d and 2-d",
    ),
    "attention mask": (
        lambda: HopfieldAttention(8, 2)(X, X, X, attn_mask=torch.ones(2, 5, dtype=torch.bool)),
        ValueError,
        r"\(2, 2\) or \(10, 2, 2\), got \(2, 5\)",
    ),
    "attention mask type": (
        lambda: HopfieldAttention(8, 2)(X, X, X, key_padding_mask=torch.ones(5, 2).long()),
        TypeError,
        "boolean .* got torch.int64",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_is_one_message(case: str) -> None:
    call, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert str(caught.value).startswith("expected")
    assert str(caught.value).endswith(".")
