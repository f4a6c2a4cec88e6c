"""Pictures of the pages, drawn by the library when the site is built."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from figures import save_pair, use_style

import hopfy
import hopfy.plot

MAPS = ["softmax", "1.5-entmax", "sparsemax", "5-normmax", "3-subsets", "entropic-3-subsets"]
MAPS += ["sequential-3-subsets, transition 1", "0.3-capped"]


def weights_of_maps() -> plt.Figure:
    """The same eight scores through every map."""
    scores = torch.tensor([0.3, 1.3, 1.1, -0.2, 0.5, -0.8, 0.9, 0.1])
    figure, axes = plt.subplots(3, 3, figsize=(7.6, 5.0))
    axes[0, 0].bar(range(8), scores, color="#8a8a8a")
    axes[0, 0].set_title("the scores")
    for number, (ax, name) in enumerate(zip(list(axes.flat)[1:], MAPS, strict=True)):
        weights = hopfy.omega_from(name)(scores)
        ax.bar(range(8), weights, color=f"C{number % 7}")
        zeros = [i for i, weight in enumerate(weights.tolist()) if weight == 0]
        ax.plot(zeros, [0.015] * len(zeros), ".", color="#8a8a8a", markersize=5)
        ax.set_title(name.replace(", transition 1", ""), fontsize=9)
        ax.set_ylim(0, 1.05)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.tick_params(labelsize=8)
    return figure


def competition() -> plt.Figure:
    """The weight of one entry as its lead over another one grows."""
    leads = torch.linspace(-2, 2, 401)
    scores = torch.stack([leads, torch.zeros(401), torch.full((401,), -0.6)], 1)
    figure, ax = plt.subplots(figsize=(7.2, 3.4))
    styles = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))]
    for name, style in zip([*MAPS[:4], "2-subsets"], styles, strict=True):
        ax.plot(leads, hopfy.omega_from(name)(scores)[:, 0], linestyle=style, label=name)
    ax.set(xlabel="lead of the first score over the second", ylabel="weight of the first")
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def basins() -> plt.Figure:
    """Five patterns in the plane under four maps."""
    angles = torch.tensor([0.2, 1.1, 2.6, 3.6, 5.3])
    patterns = torch.stack([angles.cos(), angles.sin()], dim=1)
    figure, axes = plt.subplots(1, 4, figsize=(7.6, 2.2))
    for ax, name in zip(axes, MAPS[:4], strict=True):
        network = hopfy.HopfieldNetwork(patterns, name, beta=6.0)
        hopfy.plot.basins(network, points=110, ax=ax)
        ax.set(title=name, xlabel="", ylabel="", xticks=[], yticks=[])
    return figure


def front() -> plt.Figure:
    """The picture of the first page: a landscape, its basins, and digits that came back."""
    from sklearn.datasets import load_digits

    angles = torch.tensor([0.2, 1.1, 2.6, 3.6, 5.3])
    patterns = torch.stack([angles.cos(), angles.sin()], dim=1)
    network = hopfy.HopfieldNetwork(patterns, "1.5-entmax", beta=6.0)
    torch.manual_seed(3)
    cues = 1.6 * torch.rand(9, 2) - 0.8
    figure, axes = plt.subplots(1, 3, figsize=(9.0, 2.9), width_ratios=(1, 1, 1.35))
    hopfy.plot.energy_landscape(network, colorbar=False, ax=axes[0])
    hopfy.plot.trajectory(network, cues, ax=axes[0])
    hopfy.plot.basins(network, points=140, ax=axes[1])
    digits = torch.tensor(load_digits().data[:200], dtype=torch.float64)
    memory = hopfy.AssociativeMemory().fit(digits)
    noisy = digits[:5] + 4.0 * torch.randn(5, 64, dtype=torch.float64)
    rows = {"stored": digits[:5], "cue": noisy, "recalled": memory}
    hopfy.plot.recall_grid(rows, queries=noisy, truth=digits[:5], ax=axes[2])
    for ax, title in zip(axes, ("energy", "basins", "certified recall"), strict=True):
        ax.set(title=title, xlabel="", ylabel="", xticks=[])
    axes[0].set_yticks([])
    axes[1].set_yticks([])
    return figure


PICTURES = {
    "choosing-weights": weights_of_maps,
    "choosing-competition": competition,
    "choosing-basins": basins,
    "front": front,
}


def write_pictures(folder: Path) -> None:
    """Every picture, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        use_style()
        figure = draw()
        save_pair(figure, folder / f"{name}.png")
        plt.close(figure)
