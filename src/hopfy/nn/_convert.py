"""From the state dicts of the public hopfield-layers package to hopfy layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hopfy.nn._heads import Copies, PerHead, Sizes
from hopfy.nn._hopfield import Hopfield, HopfieldLookup, HopfieldPooling
from hopfy.omega import Omega, Shannon

__all__ = ["from_hflayers"]

# hflayers' constructor arguments and defaults; the first word of a pattern's role is hopfy's.
_DEFAULTS: dict[str, Any] = {
    "input_size": None,
    "hidden_size": None,
    "output_size": None,
    "pattern_size": None,
    "num_heads": 1,
    "scaling": None,
    "update_steps_max": 0,
    "update_steps_eps": 1e-4,
    "normalize_hopfield_space": False,
    "normalize_hopfield_space_affine": False,
    "normalize_hopfield_space_eps": 1e-5,
    "pattern_projection_as_connected": False,
    "stored_pattern_size": None,
    "pattern_projection_size": None,
    "batch_first": True,
    "association_activation": None,
    "dropout": 0.0,
    "input_bias": True,
    "concat_bias_pattern": False,
    "add_zero_association": False,
    "disable_out_projection": False,
    "quantity": 1,
    "trainable": True,
    "lookup_weights_as_separated": False,
    "lookup_targets_as_trainable": True,
}
_ROLES = {
    "queries": "state_pattern",
    "memories": "stored_pattern",
    "values": "pattern_projection",
}
for _theirs in _ROLES.values():
    _DEFAULTS[f"normalize_{_theirs}"] = True
    _DEFAULTS[f"normalize_{_theirs}_affine"] = True
    _DEFAULTS[f"normalize_{_theirs}_eps"] = 1e-5
    _DEFAULTS[f"{_theirs}_as_static"] = False

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
_WITHOUT_LIMIT = 1000  # update steps where theirs have no limit


def from_hflayers(
    state_dict: Mapping[str, Tensor],
    *,
    omega: Omega | str | nn.Module | None = None,
    **their_arguments: Any,
) -> Hopfield | HopfieldPooling | HopfieldLookup:
    """The hopfy layer that computes what a layer of the hopfield-layers package computes.

    The class is recognized by the keys: ``pooling_weights`` makes a `HopfieldPooling`,
    ``lookup_weights`` a `HopfieldLookup`, anything else a `Hopfield`. Padding masks change sides:
    those of hflayers are True for padding, those of hopfy True for what may be selected.

    Args:
        state_dict: what ``layer.state_dict()`` gave there.
        omega: another map in place of their softmax.
        their_arguments: the constructor arguments there, by name.

    >>> import torch, hopfy
    >>> layer = hopfy.nn.from_hflayers({}, input_size=4, scaling=2.0, disable_out_projection=True,
    ...     state_pattern_as_static=True, normalize_state_pattern=False,
    ...     stored_pattern_as_static=True, normalize_stored_pattern=False,
    ...     pattern_projection_as_static=True, normalize_pattern_projection=False)
    >>> layer(torch.eye(4)).argmax(-1)
    tensor([0, 1, 2, 3])
    """
    options = _complete(their_arguments)
    omega = Shannon() if omega is None else omega
    for key, kind in (("pooling_weights", HopfieldPooling), ("lookup_weights", HopfieldLookup)):
        if key in state_dict:
            inside = {
                name.removeprefix("hopfield."): tensor
                for name, tensor in state_dict.items()
                if name.startswith("hopfield.")
            }
            return _with_learned(kind, _hopfield(inside, options, omega), state_dict, options)
    return _hopfield(state_dict, options, omega)


def _complete(arguments: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(arguments) - set(_DEFAULTS))
    if unknown:
        raise TypeError(
            f"expected constructor arguments of hopfield-layers, got {', '.join(unknown)}."
        )
    options = _DEFAULTS | arguments
    if options["add_zero_association"]:
        raise ValueError(
            "expected add_zero_association=False, got True; hopfy has no counterpart for it."
        )
    if not options["batch_first"]:
        raise ValueError(
            "expected batch_first=True, got False; hopfy's layers are batch first: transpose the "
            "inputs, and the learned patterns in the state dict."
        )
    activation = options["association_activation"]
    if activation is not None and activation not in _ACTIVATIONS:
        raise ValueError(
            f"expected association_activation to be one of {sorted(_ACTIVATIONS)}, "
            f"got {activation!r}; apply it to the layer's output yourself."
        )
    return options


def _hopfield(
    state: Mapping[str, Tensor], options: dict[str, Any], omega: Omega | str | nn.Module
) -> Hopfield:
    heads = options["num_heads"]
    projected = any(not options[f"{role}_as_static"] for role in _ROLES.values())
    unprojected = not projected and options["disable_out_projection"]
    head = options["hidden_size"] or (options["input_size"] or 0) // heads
    scaling = options["scaling"]
    if scaling is None:
        scaling = 1.0 if unprojected else 1 / math.sqrt(head)
    steps = options["update_steps_max"]
    layer = Hopfield(
        heads=heads,
        omega=omega,
        beta=scaling,
        max_steps=_WITHOUT_LIMIT if steps is None else int(steps) + 1,
        tol=float(options["update_steps_eps"]),
        dropout=options["dropout"],
    )
    queries_in, memories_in, values_in = _input_projections(state, options)
    layer.use(queries_in, memories_in, values_in, _output(state, options))
    return layer


def _input_projections(state: Mapping[str, Tensor], options: dict[str, Any]) -> list[nn.Module]:
    """Layer norm, linear map and per-head norm of queries, memories and values."""
    heads = options["num_heads"]
    linears = _linears(state, options)
    connected = options["pattern_projection_as_connected"] and linears["memories"] is not None
    parts = []
    for role, theirs in _ROLES.items():
        steps: list[nn.Module] = []
        if options[f"normalize_{theirs}"]:
            steps.append(_layer_norm(state, f"norm_{theirs}", options, theirs))
        linear = linears[role]
        if role == "values" and connected:
            steps.append(linears["memories"])  # type: ignore[arg-type]
        if linear is not None:
            steps.append(linear)
        elif heads > 1 and not (role == "values" and connected):
            steps.append(Copies(heads))
        if role != "values" and options["normalize_hopfield_space"]:
            steps.append(PerHead(heads, _space_norm(state, options)))
        parts.append(nn.Sequential(*steps) if len(steps) != 1 else steps[0])
    return parts


def _linears(state: Mapping[str, Tensor], options: dict[str, Any]) -> dict[str, nn.Linear | None]:
    """The linear maps, cut out of their packed parameters."""
    core = "association_core."
    packed, bias = state.get(core + "in_proj_weight"), state.get(core + "in_proj_bias")
    linears: dict[str, nn.Linear | None] = {}
    row = 0
    for role, letter in (("queries", "q"), ("memories", "k"), ("values", "v")):
        if options[f"{_ROLES[role]}_as_static"]:
            linears[role] = None
            continue
        if packed is None:
            weight = _take(state, f"{core}{letter}_proj_weight")
        else:
            weight = packed[row : row + _rows(options, role)]
        linears[role] = _linear(weight, None if bias is None else bias[row : row + len(weight)])
        row += len(weight)
    return linears


def _rows(options: dict[str, Any], role: str) -> int:
    heads: int = options["num_heads"]
    head = options["hidden_size"] or options["input_size"] // heads
    return heads * int((options["pattern_size"] or head) if role == "values" else head)


def _output(state: Mapping[str, Tensor], options: dict[str, Any]) -> nn.Module:
    steps: list[nn.Module] = []
    if not options["disable_out_projection"]:
        prefix = "association_core.out_proj."
        steps.append(_linear(_take(state, prefix + "weight"), state.get(prefix + "bias")))
    if options["association_activation"] is not None:
        steps.append(_ACTIVATIONS[options["association_activation"]]())
    if not steps:
        return nn.Identity()
    return nn.Sequential(*steps) if len(steps) > 1 else steps[0]


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def _layer_norm(
    state: Mapping[str, Tensor], prefix: str, options: dict[str, Any], theirs: str
) -> nn.LayerNorm:
    size = options["input_size"] if theirs == "state_pattern" else options[f"{theirs}_size"]
    affine = options[f"normalize_{theirs}_affine"]
    weight = _take(state, f"{prefix}.weight") if affine else None
    size = weight.shape[0] if weight is not None else size or options["input_size"]
    norm = nn.LayerNorm(size, options[f"normalize_{theirs}_eps"], affine)
    if weight is not None:
        with torch.no_grad():
            norm.weight.copy_(weight)
            norm.bias.copy_(_take(state, f"{prefix}.bias"))
    return norm


def _space_norm(state: Mapping[str, Tensor], options: dict[str, Any]) -> nn.LayerNorm:
    head = options["hidden_size"] or options["input_size"] // options["num_heads"]
    affine = options["normalize_hopfield_space_affine"]
    norm = nn.LayerNorm(head, options["normalize_hopfield_space_eps"], affine)
    if affine:
        with torch.no_grad():
            norm.weight.copy_(_take(state, "association_core.p_norm_weight"))
            norm.bias.copy_(_take(state, "association_core.p_norm_bias"))
    return norm


def _with_learned(
    kind: type[HopfieldPooling] | type[HopfieldLookup],
    hopfield: Hopfield,
    state: Mapping[str, Tensor],
    options: dict[str, Any],
) -> HopfieldPooling | HopfieldLookup:
    """Wrap a converted `Hopfield` with the learned patterns of the state dict."""

    def learned(key: str, trainable: bool) -> nn.Parameter:
        pattern = _take(state, key)
        if pattern.ndim != 3 or pattern.shape[0] != 1:
            raise ValueError(
                f"expected {key} of shape (1, quantity, size), got {tuple(pattern.shape)}."
            )
        return nn.Parameter(pattern[0].detach().clone(), requires_grad=trainable)

    sizes = Sizes(queries=1)  # stands in until the converted parts take its place
    layer: HopfieldPooling | HopfieldLookup
    if kind is HopfieldPooling:
        layer = HopfieldPooling(sizes)
        layer.queries = learned("pooling_weights", options["trainable"])
    else:
        layer = HopfieldLookup(sizes, memories=1)
        layer.memories = learned("lookup_weights", options["trainable"])
        if "target_weights" in state:
            layer.values = learned("target_weights", options["lookup_targets_as_trainable"])
    layer.hopfield = hopfield
    return layer


def _take(state: Mapping[str, Tensor], key: str) -> Tensor:
    try:
        return state[key]
    except KeyError:
        raise ValueError(
            f"expected the key {key!r} in the state dict, got {sorted(state)}; "
            "do the constructor arguments belong to it?"
        ) from None
