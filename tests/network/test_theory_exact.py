"""Certificates, separations and radii against rational arithmetic; they may be missing, never wrong."""

from __future__ import annotations

import math
import operator
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfy
from hopfy import theory
from hopfy.structures import Chain, Grid, KSubsets, Matching, SequentialKSubsets, Tree
from hopfy.theory._exact import exact_products
from hopfy.theory._limits import gaps_below
from hopfy.theory._rounding import ceil_float, floor_float, norm_bounds
from judges import certificates, exact

SEEDS = st.integers(0, 1 << 30)
OMEGAS = {"sparsemax": Fraction(1), "1.5-entmax": Fraction(2), "3-entmax": Fraction(1, 2),
          "2-normmax": Fraction(1)}  # fmt: skip


# ---------------------------------------------------------------------- exact arithmetic


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_exact_products_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    rows = certificates.patterns(rng, rng.randint(2, 6))
    found = exact_products(rows[:2], rows)
    a, b, *_ = exact.rational(rows)
    anchor = [x + y for x, y in zip(a, b, strict=True)]
    assert found == [exact.dot(anchor, row) for row in exact.rational(rows)]


def test_exact_products_over_the_whole_range_of_floats() -> None:
    rows = torch.tensor([[1e-300, 1.0, 5e-324], [1e5, 1e-160, 3.0]], dtype=torch.float64)
    products = exact_products(rows[:1], rows)
    assert products is None or products[1] == exact.dot(*exact.rational(rows))
    assert exact_products(torch.tensor([[math.inf]]), torch.tensor([[1.0]])) is None
    assert exact_products(torch.zeros(1, 3), torch.zeros(2, 3)) == [0, 0]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_gaps_are_rounded_down_by_less_than_two_units(seed: int) -> None:
    rng = random.Random(seed)
    rows = certificates.patterns(rng, 4).double()
    found = gaps_below(rows[:1].expand(3, -1), rows[1:]).tolist()
    own, *others = exact.rational(rows)
    for value, other in zip(found, others, strict=True):
        gap = exact.dot(own, [x - y for x, y in zip(own, other, strict=True)])
        assert Fraction(value) <= gap
        assert math.nextafter(math.nextafter(value, math.inf), math.inf) >= floor_float(gap)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_norm_bounds_are_above_and_tight(seed: int) -> None:
    rows = certificates.patterns(random.Random(seed), 5)
    for norm, row in zip(norm_bounds(rows).tolist(), exact.rational(rows), strict=True):
        square = exact.dot(row, row)
        assert Fraction(norm) ** 2 >= square
        assert norm <= math.sqrt(float(square)) * (1 + 1e-5) + 1e-18


def test_directed_rounding() -> None:
    third = Fraction(1, 3)
    assert Fraction(floor_float(third)) < third < Fraction(ceil_float(third))
    assert floor_float(Fraction(1, 2)) == ceil_float(Fraction(1, 2)) == 0.5
    assert ceil_float(Fraction(10) ** 400) == math.inf
    assert math.isfinite(floor_float(Fraction(10) ** 400))


# ---------------------------------------------------------------------- single patterns and k-subsets


@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, name=st.sampled_from(sorted(OMEGAS)))
def test_stationarity_is_decided_as_by_rational_arithmetic(seed: int, name: str) -> None:
    rng = random.Random(seed)
    memories = certificates.patterns(rng, rng.randint(2, 7))
    i = rng.randrange(len(memories))
    delta = min(exact.gaps(memories, [i]))
    betas = [1.0, 10.0 ** rng.randint(-12, 12)]
    if delta > 0:
        betas += certificates.near(float(OMEGAS[name] / delta))
    for beta in betas:
        expected = delta >= OMEGAS[name] / Fraction(beta)
        assert theory.is_stationary(memories, name, beta)[i] == expected


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_associations_are_decided_as_by_rational_arithmetic(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 7)
    k = rng.randint(1, count)
    memories = certificates.patterns(rng, count)
    members = sorted(rng.sample(range(count), k))
    delta = min(exact.gaps(memories, members), default=Fraction(1))
    betas = [1.0] + (certificates.near(float(1 / delta)) if delta > 0 else [])
    omega = hopfy.SparseMAP(KSubsets(k))
    for beta in betas:
        expected = k == count or delta >= 1 / Fraction(beta)
        rows = torch.tensor([members])
        assert bool(theory.proves_fixed_point(memories, rows, omega, beta)) == expected


@pytest.mark.parametrize("count", [65, 66, 130, 513])
@pytest.mark.parametrize("name", ["sparsemax", "1.5-entmax"])
def test_orthonormal_patterns_are_certified_at_the_margin_in_any_number(
    count: int, name: str
) -> None:
    memories, beta = torch.eye(count), float(OMEGAS[name])
    assert theory.is_stationary(memories, name, beta).all()
    assert not theory.is_stationary(memories, name, math.nextafter(beta, 0.0)).any()
    found = hopfy.HopfieldNetwork(memories, name, beta).retrieve(memories[:3])
    assert found.certified.all()


def test_equality_needs_no_lattice_and_no_small_number_of_rivals() -> None:
    # Hundreds of rivals in exact equality; 1 + 2**-40 breaks every common factor of moderate size.
    memories = torch.eye(150, dtype=torch.float64)
    memories[0, 0] = 1 + 2.0**-40
    memories[1, 1] = 1 - 2.0**-45
    stationary = theory.is_stationary(memories, "sparsemax", 1.0)
    assert stationary.tolist() == [True, False] + [True] * 148


# ---------------------------------------------------------------------- separations and radii


@settings(max_examples=80, deadline=None)
@given(seed=SEEDS)
def test_separations_are_never_too_large_and_nearly_exact(seed: int) -> None:
    rng = random.Random(seed)
    memories = certificates.patterns(rng, rng.randint(1, 8))
    found = theory.separations(memories)
    for i, (value, rival) in enumerate(zip(*(part.tolist() for part in found), strict=True)):
        gaps = exact.gaps(memories, [i])
        if not gaps:
            assert (value, rival) == (math.inf, -1)
            continue
        assert Fraction(value) <= min(gaps)
        assert math.nextafter(math.nextafter(value, math.inf), math.inf) >= floor_float(min(gaps))
        own, other = exact.rational(memories[[i, rival]])
        assert float(exact.dot(own, own) - exact.dot(own, other)) == pytest.approx(
            float(min(gaps)), rel=1e-12, abs=1e-300
        )


def test_separations_around_a_common_direction() -> None:
    # In float32 the products, about 2.5e6, are off by more than the separations, about 0.5.
    torch.manual_seed(0)
    around = torch.randn(200, 64, dtype=torch.float64)
    memories = torch.nn.functional.normalize(around, dim=-1)
    memories[:, 0] += 1600
    memories = memories.float()
    gram = memories.double() @ memories.double().T
    expected = gram.diagonal() - gram.clone().fill_diagonal_(-math.inf).amax(-1)
    found = theory.separations(memories).value
    assert torch.allclose(found, expected, atol=1e-6)
    for i in range(0, 200, 20):
        assert Fraction(float(found[i])) <= min(exact.gaps(memories, [i]))


def test_many_rivals_within_rounding_errors_give_a_lower_bound() -> None:
    memories = torch.full((400, 3), 0.1, dtype=torch.float64)
    memories[0] = 0.3
    found = theory.separations(memories)
    assert found.value[0] <= float(min(exact.gaps(memories[:2], [0])))
    assert ((found.value[1:] <= 0) & (found.value[1:] > -0.1)).all()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, name=st.sampled_from(sorted(OMEGAS)), bound=st.sampled_from(["exact", "paper"]))
def test_radii_are_never_too_large(seed: int, name: str, bound: str) -> None:
    rng = random.Random(seed)
    memories = certificates.patterns(rng, rng.randint(2, 6))
    beta = 10.0 ** rng.randint(-3, 9)
    needed = OMEGAS[name] / Fraction(beta)
    radii = theory.certified_radius(memories, name, beta, bound=bound).tolist()
    rows = exact.rational(memories)
    square = max(exact.dot(row, row) for row in rows)
    for i, radius in enumerate(radii):
        delta = min(exact.gaps(memories, [i]))
        if bound == "exact":
            assert (radius >= 0) == (delta >= needed)
        if radius == -math.inf:
            continue
        for j, row in enumerate(rows):
            if j == i or radius == math.inf:
                continue
            apart = [x - y for x, y in zip(rows[i], row, strict=True)]
            room = exact.dot(rows[i], apart) - needed
            distance = exact.dot(apart, apart) if bound == "exact" else 4 * square
            assert _at_most(Fraction(radius), room, distance)


def _at_most(radius: Fraction, room: Fraction, distance: Fraction) -> bool:
    """Whether ``radius * sqrt(distance) <= room``, exactly."""
    if radius >= 0:
        return room >= 0 and radius**2 * distance <= room**2
    return room >= 0 or radius**2 * distance >= room**2


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, name=st.sampled_from(sorted(OMEGAS)))
def test_one_step_is_decided_as_by_rational_arithmetic(seed: int, name: str) -> None:
    rng = random.Random(seed)
    memories = certificates.patterns(rng, rng.randint(2, 6))
    query = memories[:1] + memories[1:2] * rng.choice([0.0, 0.5, 1e-3])
    if not bool(query.isfinite().all()):
        return
    (q,) = exact.rational(query)
    products = [exact.dot(q, row) for row in exact.rational(memories)]
    first = max(range(len(products)), key=products.__getitem__)
    lead = products[first] - max(p for j, p in enumerate(products) if j != first)
    for beta in [1.0, *(certificates.near(float(OMEGAS[name] / lead)) if lead > 0 else [])]:
        found = theory.one_step(query, memories, name, beta)
        expected = first if lead >= OMEGAS[name] / Fraction(beta) else -1
        assert found.pattern.item() == expected


# ---------------------------------------------------------------------- structures


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
@pytest.mark.parametrize("kind", certificates.KINDS)
def test_a_certificate_for_a_structure_is_true_by_enumeration(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    case = certificates.case(rng, kind)
    memories = certificates.patterns(rng, case.size)
    members = case.vertices[rng.randrange(len(case.vertices))].nonzero().flatten()
    if rng.random() < 0.1:  # not a structure, as a rule
        members = torch.tensor(sorted(rng.sample(range(case.size), rng.randint(1, case.size))))
    if not members.numel() or not bool(memories.isfinite().all()):
        return
    omega, chosen = hopfy.SparseMAP(case.structure), members.tolist()
    for beta in [1.0, 1e3, *certificates.critical_betas(case, memories, chosen)]:
        proven = bool(theory.proves_fixed_point(memories, members[None], omega, beta))
        rooms = [room for _, room in case.rooms(memories, chosen, beta)]
        if proven:
            assert all(room >= 0 for room in rooms)
        else:  # nothing that is clear is missed
            scale = Fraction(beta) * max(exact.dot(r, r) for r in exact.rational(memories))
            assert min(rooms) <= (scale + 10) * Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("structure", "members"),
    [
        (KSubsets(2), [0, 3]),
        (SequentialKSubsets(2, 0.5), [1, 2]),
        (Grid(Matching(), (3, 3)), [0, 4, 8]),
        (Grid(Tree(), (3, 3)), [0, 3, 7]),
        (Grid(Tree(projective=True, single_root=True), (3, 3)), [0, 3, 7]),
        (Grid(Chain(0.25), (3, 3)), [0, 3, 7]),
    ],
)
def test_equality_at_the_margin_is_settled_for_structures(
    structure: hopfy.structures.Structure, members: list[int]
) -> None:
    memories, rows = torch.eye(9), torch.tensor([members])
    omega = hopfy.SparseMAP(structure)
    betas = [Fraction(n, 16) for n in range(1, 80)]
    proven = [bool(theory.proves_fixed_point(memories, rows, omega, float(b))) for b in betas]
    least = float(betas[proven.index(True)])
    assert all(proven[proven.index(True) :])
    assert bool(theory.proves_fixed_point(memories, rows, omega, least))
    assert not bool(theory.proves_fixed_point(memories, rows, omega, math.nextafter(least, 0.0)))


@settings(max_examples=6, deadline=None)
@given(seed=SEEDS)
@pytest.mark.parametrize("kind", certificates.KINDS)
def test_separations_and_radii_of_structures_are_never_too_large(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    case = certificates.case(rng, kind)
    memories = torch.randn(case.size, 4, generator=torch.Generator().manual_seed(seed)).double()
    memories = memories + rng.choice([0.0, 3.0]) * torch.eye(case.size, 4)
    members = case.vertices[rng.randrange(len(case.vertices))].nonzero().flatten()
    chosen, beta = members.tolist(), rng.choice([0.5, 1.0, 8.0])
    if not chosen:
        return
    rooms = case.rooms(memories, chosen, beta)
    if rooms and rooms[0][0] < 0:  # its own factor scores rule the structure out
        return
    bits = torch.zeros(case.size).double()
    bits[members] = 1
    slope = case.structure.slope(bits[None])[0]
    leads = {z: room + _along(slope, bits - case.vertices[z]) for z, room in rooms}
    least = min(leads.values(), default=None)
    found = theory.association_separation(memories, members[None], case.structure, beta=beta)
    if least is None:
        assert found.item() == math.inf
    else:
        assert Fraction(found.item()) <= least / Fraction(beta)
        assert found.item() == pytest.approx(float(least) / beta, rel=1e-6, abs=1e-6)
    radius = theory.association_radius(memories, members[None], beta, case.structure).item()
    assert (radius >= 0) or min((room for _, room in rooms), default=Fraction(0)) < Fraction(
        1, 10**9
    )
    if 0 <= radius < math.inf:
        _check_ball(case, memories, bits, Fraction(beta), Fraction(radius), rooms)


def _along(slope: torch.Tensor, change: torch.Tensor) -> Fraction:
    pairs = zip(slope.tolist(), change.tolist(), strict=True)
    return sum((Fraction(s) * Fraction(c) for s, c in pairs), Fraction(0))


def _check_ball(case, memories, bits, beta, radius, rooms) -> None:  # type: ignore[no-untyped-def]
    """No structure overtakes y anywhere in the ball: room >= beta * radius * |X'(y - z)|."""
    rows = exact.rational(memories)
    for z, room in rooms:
        change = [Fraction(c) for c in (bits - case.vertices[z]).tolist()]
        shift = [exact.dot(change, list(column)) for column in zip(*rows, strict=True)]
        assert _at_most(beta * radius, room, exact.dot(shift, shift))


def test_a_set_that_is_no_structure_has_no_separation() -> None:
    with pytest.raises(ValueError, match="form a structure"):
        theory.association_separation(
            torch.eye(4), torch.tensor([[0, 1]]), Grid(Matching(), (2, 2))
        )
    with pytest.raises(TypeError, match="Grid"):
        theory.association_separation(torch.eye(4), torch.tensor([[0, 3]]), Matching())
    with pytest.raises(ValueError, match="different members"):
        theory.proves_fixed_point(torch.eye(4), torch.tensor([[1, 1]]), hopfy.Tsallis(2.0), 1.0)


def test_factor_scores_that_forbid_by_their_size_cost_no_digits() -> None:
    structure = SequentialKSubsets(2, transition=-1e30)
    omega, rows = hopfy.SparseMAP(structure), torch.tensor([[0, 2], [0, 1]])
    proven = theory.proves_fixed_point(3 * torch.eye(5), rows, omega, 1.0)
    assert proven.tolist() == [True, False]


# ---------------------------------------------------------------------- torch's switches


def _near_margin(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    torch.manual_seed(0)
    memories = torch.nn.functional.normalize(torch.randn(40, 16), dim=-1).to(dtype)
    least = theory.separations(memories).value.clamp_min(1e-3)
    return memories, torch.arange(40).unsqueeze(1), [float(1 / least[i]) for i in range(0, 40, 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_certificates_are_the_same_inside_autocast(dtype: torch.dtype, low: torch.dtype) -> None:
    memories, members, betas = _near_margin(dtype)
    questions = [
        lambda beta: theory.proves_fixed_point(memories, members, hopfy.Tsallis(2.0), beta),
        lambda beta: theory.is_stationary(memories, "1.5-entmax", beta),
        lambda beta: theory.certified_radius(memories, "sparsemax", beta),
        lambda beta: theory.one_step(memories, memories, "sparsemax", beta).pattern,
        lambda _: theory.separations(memories).value,
        lambda beta: theory.proves_fixed_point(
            memories, members[:5], hopfy.SparseMAP(SequentialKSubsets(1, 0.0)), beta
        ),
    ]
    for question in questions:
        for beta in betas:
            outside = question(beta)
            with torch.autocast("cpu", low):
                assert torch.equal(question(beta), outside)


@pytest.mark.parametrize(
    "home", ["torch.backends", "torch.backends.cuda.matmul", "torch.backends.mkldnn.matmul"]
)
def test_proofs_do_not_depend_on_the_precision_of_float32_products(home: str) -> None:
    memories, members, betas = _near_margin(torch.float32)
    omega = hopfy.Tsallis(2.0)
    expected = [theory.proves_fixed_point(memories, members, omega, beta) for beta in betas]
    switch = operator.attrgetter(home.removeprefix("torch."))(torch)
    before = switch.fp32_precision
    try:
        for setting in ("ieee", "tf32"):
            switch.fp32_precision = setting
            found = [theory.proves_fixed_point(memories, members, omega, beta) for beta in betas]
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            retrieval = hopfy.HopfieldNetwork(memories, "sparsemax", 5.0).retrieve(memories[:3])
            assert retrieval.state.isfinite().all()
    finally:
        switch.fp32_precision = before


@pytest.mark.parametrize("default", ["meta", torch.float16, torch.bfloat16])
def test_certificates_do_not_depend_on_torchs_defaults(default: str | torch.dtype) -> None:
    memories, members, (beta, *_) = _near_margin(torch.float32)
    pairs = torch.tensor([[0, 1], [2, 3]])
    sequences = SequentialKSubsets(2, 0.5)
    before = torch.get_default_dtype()

    def answers() -> list[torch.Tensor]:
        return [
            theory.proves_fixed_point(memories, members, hopfy.Tsallis(2.0), beta),
            theory.proves_fixed_point(memories, pairs, hopfy.SparseMAP(sequences), 9.0),
            theory.association_separation(memories, pairs, sequences),
            theory.association_radius(memories, pairs, 9.0, sequences),
            theory.certified_radius(memories, "sparsemax", beta),
            theory.one_step(memories, memories, "sparsemax", beta).pattern,
        ]

    expected = answers()
    try:
        if isinstance(default, str):
            torch.set_default_device(default)
        else:
            torch.set_default_dtype(default)
        found = answers()
    finally:
        torch.set_default_device(None)  # type: ignore[arg-type]
        torch.set_default_dtype(before)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
