"""The laws of maps, structures, certificates, the store and its files, on new cases in every run."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import torch

import hopfy
from hopfy import functional as F
from hopfy import theory
from judges import certificates, exact
from judges.campaigns import campaign
from judges.registry import MAPS


def _scores(rng: random.Random, size: int) -> torch.Tensor:
    """Ties, near-ties, huge and tiny numbers, masked entries."""
    scale = 10.0 ** rng.randint(-9, 9)
    base = [rng.choice([rng.gauss(0, 1), rng.randint(-2, 2)]) for _ in range(size)]
    row = torch.tensor(base, dtype=torch.float64) * scale
    if rng.random() < 0.3:
        row[rng.randrange(size)] = rng.choice([-torch.inf, -1e30, row.max().item()])
    return row


@campaign
def test_maps_solve_their_problem(rng: random.Random) -> None:
    """The answer lies in the domain; forbidding is masking; the order of entries does not matter."""
    entry = rng.choice(MAPS)
    row = _scores(rng, rng.randint(4, 12))
    if not bool((row > -torch.inf).any()):
        return
    weights = entry(row)
    assert float(entry.omega.violation(weights, row > -torch.inf)) < 1e-6
    masked = entry(row, mask=row > -1e29)
    assert torch.allclose(weights, masked, atol=1e-12)
    order = torch.tensor(rng.sample(range(len(row)), len(row)))
    assert torch.allclose(entry(row[order]), weights[order], atol=1e-7)


@campaign
def test_structures_solve_their_problem(rng: random.Random) -> None:
    """No vertex is better for the linearized problem at the answer."""
    case = certificates.case(rng, rng.choice(certificates.KINDS))
    scores = _scores(rng, case.size).clamp_min(-1e9)
    forbidden = ((case.factors > 0) & (case.factor_scores == -torch.inf)).any(-1)
    if bool(forbidden.all()):
        return
    weights = F.sparsemap(scores, case.structure)
    linear = scores - case.structure.slope(weights)
    solution = F.sparsemap_solution(scores, case.structure)
    factors = solution.factor_marginals.double().flatten()
    edges = torch.where(case.factor_scores == -torch.inf, 0.0, case.factor_scores.double())
    values = case.vertices @ linear + case.factors.double() @ edges
    values = torch.where(forbidden, -torch.inf, values)
    own = float(weights @ linear + factors @ edges) if len(edges) else float(weights @ linear)
    size = float(scores.abs().max()) + float(edges.abs().clamp_max(1e9).sum()) + 1
    assert float(values.max()) <= own + 1e-6 * size * case.size


@campaign
def test_certificates_of_structures_are_true(rng: random.Random) -> None:
    case = certificates.case(rng, rng.choice(certificates.KINDS))
    memories = certificates.patterns(rng, case.size)
    members = case.vertices[rng.randrange(len(case.vertices))].nonzero().flatten()
    if not members.numel() or not bool(memories.isfinite().all()):
        return
    omega, chosen = hopfy.SparseMAP(case.structure), members.tolist()
    for beta in [
        10.0 ** rng.randint(-12, 12),
        *certificates.critical_betas(case, memories, chosen),
    ]:
        if bool(theory.proves_fixed_point(memories, members[None], omega, beta)):
            assert case.is_fixed(memories, chosen, beta)


@campaign
def test_certificates_of_patterns_are_decided_exactly(rng: random.Random) -> None:
    memories = certificates.patterns(rng, rng.randint(2, 9))
    i = rng.randrange(len(memories))
    delta = min(exact.gaps(memories, [i]))
    assert Fraction(float(theory.separations(memories).value[i])) <= delta
    betas = [10.0 ** rng.randint(-12, 12)]
    betas += certificates.near(float(1 / delta)) if delta > 0 else []
    for beta in betas:
        expected = delta >= 1 / Fraction(beta)
        assert bool(theory.is_stationary(memories, "sparsemax", beta)[i]) == expected


@campaign
def test_the_store_is_a_dictionary(rng: random.Random, tmp_path: Path) -> None:
    """Patterns by id: what was added and not removed is there, also after a file and back."""
    torch.manual_seed(rng.randrange(1 << 30))
    memory, model = hopfy.AssociativeMemory(beta=1e6), {}
    dimension = rng.randint(1, 6)
    for _ in range(rng.randint(1, 12)):
        action = rng.choice(["add", "add", "remove", "save"])
        if action == "add":
            rows = torch.randn(rng.randint(1, 5), dimension)
            values = torch.randint(0, 100, (len(rows),))
            memory.add(rows, values=values)
            added = memory.ids.tolist()[-len(rows) :]
            model |= dict(zip(added, zip(rows, values.tolist(), strict=True), strict=True))
        elif action == "remove" and model:
            gone = rng.sample(sorted(model), rng.randint(1, len(model)))
            memory.remove(gone)
            model = {key: value for key, value in model.items() if key not in gone}
        elif action == "save" and model:
            memory.save(tmp_path / "store")
            memory = hopfy.AssociativeMemory.load(tmp_path / "store")
        assert len(memory) == len(model)
        assert sorted(memory.ids.tolist()) == sorted(model)
    for row, _ in model.values():
        answer = memory.recall(row)
        if bool(answer.certified):  # maybe another one, if two are nearly equal
            found, value = model[int(answer.ids)]
            assert torch.equal(answer.patterns, found)
            assert int(answer.values) == value


@campaign
def test_damaged_files_are_refused(rng: random.Random, tmp_path: Path) -> None:
    """A file with changed, missing or added bytes is refused with a ValueError, or is unharmed."""
    torch.manual_seed(rng.randrange(1 << 30))
    path = tmp_path / "damaged"
    memory = hopfy.AssociativeMemory()
    rows = torch.randn(rng.randint(1, 4), 3)
    memory.add(rows, values=torch.arange(len(rows)))
    memory.save(path)
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content)) if content else 0
        action = rng.choice(["flip", "cut", "insert", "zero", "repeat"])
        if action == "flip" and content:
            content[place] ^= 1 << rng.randrange(8)
        elif action == "cut":
            del content[place : place + rng.choice([1, 8, 1000])]
        elif action == "insert":
            content[place:place] = rng.randbytes(rng.choice([1, 8, 64]))
        elif action == "zero":
            content[place : place + 8] = bytes(8)
        else:
            content += content[place:]
    path.write_bytes(bytes(content))
    try:
        loaded = hopfy.AssociativeMemory.load(path)
    except ValueError:
        return
    assert torch.equal(next(iter(loaded.chunks())).patterns, rows)
