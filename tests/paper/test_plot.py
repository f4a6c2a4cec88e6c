"""Plots return the axes they drew on, say what is wrong, and leave matplotlib as it was."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import hopfy

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

import matplotlib.pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import hopfy.plot  # noqa: E402

FLAT = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [-0.5, 1.0], [-0.6, -1.0]]), dim=-1)
OMEGAS = ["softmax", "1.5-entmax", "5-normmax", "2-subsets"]


@pytest.fixture(autouse=True)
def _tidy():
    before = dict(matplotlib.rcParams)
    yield
    matplotlib.pyplot.close("all")
    assert dict(matplotlib.rcParams) == before


def network(omega="sparsemax", patterns=FLAT, beta=4.0):
    return hopfy.HopfieldNetwork(patterns, omega, beta)


def fresh():
    return Figure().subplots()


def rendered(ax):
    """Draws for real: many mistakes show only then."""
    ax.figure.canvas.draw()
    return ax


@pytest.mark.parametrize("omega", OMEGAS)
def test_pictures_of_the_plane_draw_on_the_axes_they_are_given(omega):
    net = network(omega)
    for draw in (hopfy.plot.energy_landscape, hopfy.plot.basins):
        ax = fresh()
        assert draw(net, points=15, ax=ax) is ax
        assert ax.get_xlabel() == "$q_1$"
        rendered(ax)
    ax = fresh()
    assert hopfy.plot.trajectory(net, FLAT * 0.5, ax=ax) is ax
    rendered(ax)


def test_without_axes_a_new_figure_is_made_each_time():
    net = network()
    first = hopfy.plot.basins(net, points=10)
    second = hopfy.plot.basins(net, points=10)
    assert isinstance(first, Axes)
    assert first.figure is not second.figure


def test_basins_have_the_colors_of_the_patterns_and_white_for_mixtures():
    # At beta 20 every pattern attracts; at beta 0.5 the mean of all is the only fixed point.
    colors = hopfy.plot.basins(network(beta=20.0), points=30, ax=fresh()).images[0].get_array()
    kinds = {tuple(pixel) for pixel in np.asarray(colors).reshape(-1, 3).round(3).tolist()}
    assert len(kinds) == 3
    assert (1.0, 1.0, 1.0) not in kinds
    pale = hopfy.plot.basins(network(beta=0.5), points=10, ax=fresh()).images[0].get_array()
    assert np.asarray(pale).min() == 1.0


def test_a_trajectory_follows_the_updates():
    net = network("1.5-entmax", beta=2.0)
    start = torch.tensor([[0.3, 0.4]])
    ax = hopfy.plot.trajectory(net, start, max_steps=3, patterns=False, ax=fresh())
    path = ax.lines[0].get_xydata()
    state = start
    for point in path:
        assert np.allclose(point, state[0].numpy(), atol=1e-6)
        state = net.update(state)
    assert len(path) == 4


def test_many_dimensions_are_shown_as_the_slice_closest_to_the_patterns():
    patterns = torch.randn(20, 7)
    net = network("sparsemax", patterns, 1.0)
    ax = hopfy.plot.energy_landscape(net, points=12, ax=fresh())
    assert ax.get_xlabel() == "first principal direction"
    rendered(hopfy.plot.trajectory(net, patterns[:2] + 0.1, ax=ax))
    rendered(hopfy.plot.basins(net, points=12, ax=fresh()))
    # Patterns that lie in a plane keep their distances.
    from hopfy.plot import plane_of

    flat = torch.cat([FLAT, torch.zeros(3, 3)], 1)
    places = plane_of(network(patterns=flat)).project(flat)
    assert torch.allclose(torch.cdist(places, places), torch.cdist(FLAT, FLAT), atol=1e-5)


def test_a_path_shows_the_weights_at_each_temperature():
    theta = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
    temperatures = torch.tensor([0.1, 1.0, 2.0], dtype=torch.float64)
    ax = hopfy.plot.regularization_path("sparsemax", theta, temperatures, ax=fresh())
    lines = np.stack([line.get_ydata() for line in ax.lines], 1)
    wanted = hopfy.functional.sparsemax(theta / temperatures.unsqueeze(-1))
    assert np.allclose(lines, wanted.numpy())
    assert ax.get_title() == "2-entmax"
    rendered(ax)


def test_several_paths_get_one_axes_each():
    axes = hopfy.plot.regularization_path(["softmax", "2-subsets"], torch.randn(4))
    assert [ax.get_title() for ax in axes] == ["softmax", "2-subsets"]
    rendered(axes[0])
    with pytest.raises(ValueError, match="one axes for each of 2 maps, got 1"):
        hopfy.plot.regularization_path(["softmax", "2-subsets"], torch.randn(4), ax=[fresh()])


def test_weights_leave_exact_zeros_white_and_show_the_patterns_that_matter():
    net = network("sparsemax", torch.eye(60), 3.0)
    ax = hopfy.plot.weights(net, torch.eye(60)[:4], most=10, ax=fresh())
    shown = np.ma.masked_invalid(ax.images[0].get_array())
    assert shown.shape == (4, 4)
    assert shown.mask.sum() == 12
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "3"]
    rendered(ax)


def test_a_recall_grid_frames_what_came_back_exactly():
    stored = torch.eye(4)
    cues = stored + 0.1
    memory = hopfy.AssociativeMemory().fit(stored)
    rows = {"cue": cues, "sparse": network("sparsemax", stored), "memory": memory}
    rows["blend"] = network("softmax", stored)
    ax = hopfy.plot.recall_grid(rows, queries=cues, truth=stored, ax=fresh())
    styles = [patch.get_linestyle() for patch in ax.patches]
    assert styles == ["-"] * 8 + [":"] * 4
    rendered(ax)


def test_a_bag_frames_what_counts_and_fades_what_does_not():
    shares = np.array([0.75, 0.0, 0.25])
    for pictures in (
        np.ones((3, 5, 4)),
        np.arange(60.0).reshape(3, 1, 5, 4),
        np.arange(180.0).reshape(3, 3, 5, 4),
    ):
        ax = hopfy.plot.bag(pictures, shares, targets=[True, False, False], columns=2, title="bag")
        widths = [frame.get_linewidth() for frame in ax.patches]
        assert widths[0] > widths[2] > widths[1]
        assert [image.get_alpha() for image in ax.images] == [1.0, 0.25, 1.0]
        assert [text.get_text() for text in ax.texts] == [".75", "0", ".25"]
        assert len(ax.lines) == 1  # one target
        assert ax.get_title() == "bag"


def test_a_bag_of_vectors_becomes_bars():
    ax = fresh()
    shares = [0.75, 0.0, 0.25]
    assert hopfy.plot.bag(np.ones((3, 7)), shares, ax=ax) is ax
    assert [bar.get_height() for bar in ax.patches] == shares


def test_missing_pixels_stay_blank():
    cue = torch.tensor([[1.0, torch.nan, 0.0, 0.5]])
    ax = hopfy.plot.recall_grid({"cue": cue}, ax=fresh())
    assert np.ma.getmaskarray(ax.images[0].get_array()).sum() == 1


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: hopfy.plot.basins(network(), points=1), "points to be an integer >= 2, got 1"),
        (
            lambda: hopfy.plot.basins(network(patterns=torch.ones(2, 3, 2))),
            r"memories of shape \(N, D\)",
        ),
        (
            lambda: hopfy.plot.regularization_path("softmax", torch.ones(2, 2)),
            r"theta to be a floating tensor of shape \(N,\)",
        ),
        (lambda: hopfy.plot.recall_grid({"a": torch.ones(1, 5)}), "pass shape=\\(H, W\\)"),
        (lambda: hopfy.plot.recall_grid({"a": network()}), "expected queries"),
        (lambda: hopfy.plot.bag(np.ones((2, 3)), [1.0]), "one weight for each of 2 instances"),
        (lambda: hopfy.plot.bag(np.ones(2), [1.0, 0.0]), "the instances of one bag"),
        (
            lambda: hopfy.plot.recall_grid({"a": torch.ones(1, 4), "b": torch.ones(2, 4)}),
            "in every row",
        ),
    ],
)
def test_bad_input_is_one_message(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_importing_hopfy_does_not_import_matplotlib():
    code = "import hopfy, hopfy.plot, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_attention_has_one_map_for_each_head_and_blank_zeros() -> None:
    weights = hopfy.functional.sparsemax(2 * torch.eye(4).expand(3, 4, 4).contiguous())
    weights[2] = 0.25
    axes = hopfy.plot.attention(weights, ["a", "$b$", "c", "d"], heads=[0, -1])
    assert [ax.get_title() for ax in axes] == ["head 0: 75% zeros", "head 2: 0% zeros"]
    cells = axes[0].images[0].get_array()
    assert (cells.mask == (weights[0] == 0).numpy()).all()
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["a", r"\$b\$", "c", "d"]


def test_a_key_that_one_head_ignores_counts_as_zeros() -> None:
    weights = torch.zeros(2, 4, 4)
    weights[0, :, 0], weights[1] = 1.0, 0.25
    titles = [ax.get_title() for ax in hopfy.plot.attention(weights)]
    assert titles == ["head 0: 75% zeros", "head 1: 0% zeros"]


def test_padding_does_not_count_as_sparsity() -> None:
    weights = torch.zeros(1, 4, 4)
    weights[0, :2, :2] = 0.5
    assert hopfy.plot.attention(weights)[0].get_title() == "head 0: 0% zeros"


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (torch.zeros(2, 3, 4, 4), {}, "index the batch"),
        (torch.zeros(3, 4, 4), {"tokens": ["a"]}, "4 tokens"),
        (torch.zeros(3, 4, 5), {"key_tokens": ["a"]}, "5 key_tokens"),
        (torch.zeros(3, 4, 4), {"axes": []}, "one for each head"),
    ],
)
def test_attention_refuses_what_does_not_fit(weights, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hopfy.plot.attention(weights, **options)
