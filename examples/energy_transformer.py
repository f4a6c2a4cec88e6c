"""An energy transformer block (Hoover et al., 2023) built from hopfy.nn, with any regularizer.

Tokens move down one energy: attention among tokens plus a memory of learned patterns,

    E(g) = -1/beta sum_h sum_t Omega*(beta Q_t K') - 1/2 sum_t sum_m relu(x_m . g_t)^2,    g = LayerNorm(x),

by x <- x - step dE/dg. With Omega = Shannon's negentropy this is the published block (log-sum-exp); a
Tsallis Omega makes its attention sparse. The layers' own projections and memories are the parameters:
`hopfy.nn.Hopfield` for the attention, `hopfy.nn.HopfieldLookup` for the memory.

    python examples/energy_transformer.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hopfy


class EnergyTransformerBlock(nn.Module):
    """Tokens (..., T, D) after ``steps`` descents of their energy."""

    def __init__(
        self, size: int, heads: int = 2, memories: int = 32, omega: str = "softmax",
        steps: int = 8, step_size: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.attention = hopfy.nn.Hopfield(size, heads, omega=omega, bias=False)
        self.memory = hopfy.nn.HopfieldLookup(size, memories=memories)
        self.steps, self.step_size = steps, step_size

    def energy(self, tokens: Tensor) -> Tensor:
        """The energy of normalized tokens (..., T, D), shape (...)."""
        return self.attention_energy(tokens) + self.memory_energy(tokens)

    def attention_energy(self, tokens: Tensor) -> Tensor:
        layer, heads = self.attention, self.attention.heads
        queries, keys = (
            part(tokens).unflatten(-1, (heads, -1)).transpose(-2, -3)
            for part in (layer.queries_in, layer.memories_in)
        )
        beta = layer.association.beta
        scores = beta * queries @ keys.mT
        others = ~torch.eye(tokens.shape[-2], dtype=torch.bool)  # a token does not attend to itself
        conjugate = layer.association.omega.conjugate(scores, others)
        return -conjugate.sum((-1, -2)) / beta

    def memory_energy(self, tokens: Tensor) -> Tensor:
        overlap = tokens @ self.memory.memories.mT
        return -overlap.clamp_min(0).square().sum((-1, -2)) / 2

    def forward(self, x: Tensor) -> Tensor:
        return self.descend(x)[0]

    def descend(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The tokens after all steps, and their energies on the way."""
        energies = []
        with torch.enable_grad():
            for _ in range(self.steps):
                g = self.norm(x)
                if not g.requires_grad:
                    g.requires_grad_()
                energy = self.energy(g)
                energies.append(energy.detach())
                (slope,) = torch.autograd.grad(energy.sum(), g, create_graph=self.training)
                x = x - self.step_size * slope
        energies.append(self.energy(self.norm(x)).detach())
        return x, energies


class Inpainter(nn.Module):
    """Fill in masked rows of small images: every row of pixels is a token."""

    def __init__(self, rows: int, columns: int, size: int = 32, omega: str = "softmax") -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(columns, size), nn.Linear(size, columns)
        self.place = nn.Parameter(0.1 * torch.randn(rows, size))
        self.blank = nn.Parameter(0.1 * torch.randn(size))
        self.block = EnergyTransformerBlock(size, omega=omega)

    def forward(self, images: Tensor, hidden: Tensor) -> Tensor:
        tokens = torch.where(hidden.unsqueeze(-1), self.blank, self.encode(images))
        return self.decode(self.block(tokens + self.place))


def train(omega: str = "1.5-entmax", updates: int = 60, seed: int = 0) -> tuple[float, float]:
    """Mean squared errors on hidden rows before and after training on the bundled digits."""
    from hopfy.paper import data

    torch.manual_seed(seed)
    images = data.digits().images.float() / 8 - 1
    model = Inpainter(8, 8, omega=omega)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def error(batch: Tensor) -> Tensor:
        hidden = torch.rand(batch.shape[:2]) < 0.25
        return (model(batch, hidden) - batch)[hidden].square().mean()

    before = error(images[-200:]).item()
    for _ in range(updates):
        batch = images[torch.randint(0, 1500, (64,))]
        optimizer.zero_grad()
        error(batch).backward()
        optimizer.step()
    return before, error(images[-200:]).item()


if __name__ == "__main__":
    for name in ("softmax", "1.5-entmax"):
        first, last = train(name)
        print(f"{name}: squared error of hidden rows {first:.3f} before, {last:.3f} after")
