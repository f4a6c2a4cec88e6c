"""`hopfy.nn.HopfieldLookup` with memories that are spread over processes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hopfy.distributed._attention import Memories, attend, scaled_gradient
from hopfy.distributed._collectives import for_shards, gathered, own_rows
from hopfy.distributed._files import share
from hopfy.distributed._group import Group, collective
from hopfy.distributed._inputs import QueryLayout, check_layout, digest
from hopfy.distributed._shard import Layout
from hopfy.distributed._transport import Traffic
from hopfy.nn import HopfieldLookup
from hopfy.nn.parts import as_omega, blank, head_mask, merge, split
from hopfy.omega import Omega

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ShardedHopfieldLookup", "sharded_parameters"]


class ShardedHopfieldLookup(nn.Module):
    r"""A `hopfy.nn.HopfieldLookup` whose learned memories are spread over the processes of a mesh.

    Tensor parallel over memories: each process holds, projects and trains its own rows of
    ``memories`` (and ``values``); all other parameters are replicated. Outputs and gradients are
    those of the layer that it is made from.

    Args:
        layer: the layer to share out, with the same parameters on all processes. Process r keeps the
            rows ``N r / P .. N (r + 1) / P``; nothing of the layer is changed.
        mesh: a `DeviceMesh` with one dimension; None: all processes of the default group, or this
            process alone if there is none.
        layout: ``"replicated"``: all processes of the mesh pass the same queries (data parallelism,
            if any, is over another dimension of a larger mesh). ``"sharded"``: each process passes a
            batch of its own, and the loss is the *mean* of the processes' losses, as under
            `DistributedDataParallel` over the same processes.
        timeout: seconds to wait for other processes before a `LostProcessError`.

    Under DDP or FSDP over the *same* processes, leave the shards to the layer (see
    `sharded_parameters`); over another mesh dimension there is nothing to do.

    >>> import torch, hopfy
    >>> from hopfy.distributed import ShardedHopfieldLookup
    >>> layer = hopfy.nn.HopfieldLookup(16, heads=2, memories=5, omega="sparsemax")
    >>> sharded = ShardedHopfieldLookup(layer)  # one process
    >>> x = torch.randn(4, 7, 16)
    >>> torch.allclose(sharded(x), layer(x), atol=1e-6)
    True
    """

    values: nn.Parameter | None

    def __init__(
        self,
        layer: HopfieldLookup,
        mesh: DeviceMesh | None = None,
        *,
        layout: QueryLayout = "replicated",
        timeout: float = 300.0,
    ) -> None:
        super().__init__()
        self._group = Group(mesh, timeout, layer.memories.device, type(self).__name__)

        def check() -> tuple[HopfieldLookup, dict[str, int]]:
            check_layout(layout)
            if not isinstance(layer, HopfieldLookup):
                raise TypeError(f"expected a HopfieldLookup, got {type(layer).__name__}.")
            parameters = layer.state_dict()
            return layer, {
                "layout": digest(layout),
                "names of the parameters": digest(list(parameters)),
                "parameters": digest(list(parameters.values())),
            }

        whole = self._group.agree(check)
        size, rank = self._group.size, self._group.rank
        ranges = [share(len(whole.memories), each, size) for each in range(size)]
        self._shares = Layout([stop - first for first, stop in ranges], rank)
        self._mean = layout == "sharded"
        own = slice(self._shares.first, self._shares.stop)
        self.hopfield = copy.deepcopy(whole.hopfield)
        self.memories = nn.Parameter(whole.memories.detach()[own].clone())
        if whole.values is None:
            self.register_parameter("values", None)
        else:
            self.values = nn.Parameter(whole.values.detach()[own].clone())

    @property
    def traffic(self) -> Traffic:
        """What this process has exchanged since the layer was made (a copy)."""
        return self._group.traffic.copy()

    @collective
    def forward(
        self,
        queries: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        omega: Omega | str | nn.Module | None = None,
    ) -> Any:
        """Retrieve (..., M, output size) for queries (..., M, D), as `HopfieldLookup.forward`.

        ``mask`` and the weights are over the memories of all processes. With sharded queries the
        batches of all processes have one shape but for their first dimension.
        """
        queries, mask = self._checked(queries, mask)
        if not self._mean or self._group.size == 1:
            return self._looked_up(queries, mask, need_weights, omega)
        size = float(self._group.size)
        counts = self._group.gather(lambda: [torch.tensor([len(queries)])])
        first = sum(int(each[0]) for each in counts[: self._group.rank])
        everyone = gathered(scaled_gradient(queries, size), self._group)
        if mask is not None:
            given = mask.expand(len(queries), *mask.shape[1:])
            mask = torch.cat([part[0] for part in self._group.gather(lambda: [given])])
        found = self._looked_up(everyone, mask, need_weights, omega)

        def own(answer: Tensor) -> Tensor:
            stop = first + len(queries)
            return own_rows(scaled_gradient(answer, 1 / size), first, stop, self._group)

        return tuple(own(each) for each in found) if need_weights else own(found)

    def _checked(self, queries: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        total = self._shares.total

        def check() -> tuple[tuple[Tensor, Tensor | None], dict[str, int]]:
            if not isinstance(queries, Tensor):
                raise TypeError(
                    f"expected queries to be a torch.Tensor, got {type(queries).__name__}."
                )
            if self._mean and queries.ndim < 3:
                raise ValueError(
                    "expected sharded queries of shape (batch, ..., M, D), got "
                    f"{tuple(queries.shape)}."
                )
            if mask is not None and (mask.dtype is not torch.bool or mask.shape[-1] != total):
                raise ValueError(
                    f"expected a boolean mask over the {total} memories of all processes in its last "
                    f"dimension, got {mask.dtype} of shape {tuple(mask.shape)}."
                )
            same = {
                "modes": digest(
                    [torch.is_grad_enabled(), self.training, queries.requires_grad, mask is None]
                ),
                "shape of the queries": digest(tuple(queries.shape[self._mean :])),
            }
            if not self._mean:
                same |= {"queries": digest(queries), "mask": digest(mask)}
            return (queries, mask), same

        return self._group.agree(check)

    def _looked_up(
        self,
        queries: Tensor,
        mask: Tensor | None,
        need_weights: bool,
        omega: Omega | str | nn.Module | None,
    ) -> Any:
        """The forward of `hopfy.nn.Hopfield`, with keys and values that are sharded."""
        layer, shares = self.hopfield, self._shares
        heads, association = layer.heads, layer.association
        if mask is not None:
            rows = (queries.shape[-2], shares.total)
            mask = head_mask(mask, tuple(queries.shape[:-2]), heads, rows)
        keys = split(self._projected(layer.memories_in, self.memories), heads)
        read = self.memories if self.values is None else self.values
        values = split(self._projected(layer.values_in, read), heads)
        own = None if mask is None else mask[..., shares.first : shares.stop]
        chosen = association.current("omega") if omega is None else as_omega(omega)
        state, scale = association.scaled(split(layer.queries_in(queries), heads))

        def step(state: Tensor, read: Tensor, dropout: float, need: bool) -> Any:
            held = Memories(keys, read, shares, self._group)
            found, weights = attend(state * scale, held, chosen, own, dropout, need)
            found = association.current("state")(found)
            return (found, weights) if need else found

        found, weights = association.iterate(state, keys, values, step, need_weights)
        output = blank(layer.out(merge(found)), mask)
        return (output, weights) if need_weights else output

    def _projected(self, projection: nn.Module, rows: Tensor) -> Tensor:
        """Our rows projected; the gradients of the projection are summed over all processes."""
        shared = {
            name: for_shards(each, self._group) for name, each in projection.named_parameters()
        }
        projected: Tensor = torch.func.functional_call(projection, shared, (rows,))
        return projected

    def extra_repr(self) -> str:
        return (
            f"{len(self.memories)} of {self._shares.total} memories on rank {self._group.rank} of "
            f"{self._group.size}"
        )


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that differ from process to process, by name.

    DDP and FSDP over the processes that share the memories must leave them alone::

        names = list(sharded_parameters(model))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        fully_shard(model, ignored_params=set(sharded_parameters(model).values()))
    """
    return {
        f"{prefix}.{name}".lstrip("."): each
        for prefix, module in model.named_modules()
        if isinstance(module, ShardedHopfieldLookup)
        for name, each in module.named_parameters(recurse=False)
    }
