"""Whose parameters are whose in a pipeline, and where they lie between two batches.

A rank keeps the parameters of its own stages; in place of the others stands a tensor of the same
shape that holds nothing (each of its numbers is NaN). Where several ranks share a stage, each keeps
a part (a ``DTensor``), which is made whole while a batch runs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from notebook_accel.errors import ConfigError
from notebook_accel.ranks import watch
from notebook_accel.ranks.shards import whole
from notebook_accel.strategies import tied
from notebook_accel.strategies.buffers import Following
from notebook_accel.strategies.inside import Divided
from notebook_accel.strategies.sharding import Moved


class Holding:
    """One parameter: ``whole`` is what stages compute with, ``rest`` what an optimizer trains.

    They are one and the same where each rank of a stage has all of it. ``places`` are the modules
    that have it, by the name of the attribute; ``dim`` is divided over ranks. ``ranks`` are those
    of the pipeline that have it, none as long as nobody uses it; the first tells the others of it.
    """

    def __init__(self, name: str, rest: nn.Parameter, dim: int | None) -> None:
        self.name = name
        self.rest = rest
        self.whole = rest
        self.places: list[tuple[nn.Module, str]] = []
        self.dim = dim
        self.ranks: tuple[int, ...] = ()

    def show(self, parameter: nn.Parameter) -> None:
        """Let the model have ``parameter`` in this one's places."""
        for module, attribute in self.places:
            module._parameters[attribute] = parameter


class Holdings:
    """All parameters of a model in stages, and which of them this rank has.

    ``mesh`` are the ranks that share a stage, along "dp_replicate", "tp" and "dp_shard"; None for
    one rank. ``layers`` are those that are divided over "tp".
    """

    def __init__(
        self,
        model: nn.Module,
        group: Any,
        mesh: DeviceMesh | None,
        layers: Sequence[Divided],
        device: torch.device,
    ) -> None:
        self.is_settled = False
        self._model = model
        self._group = group
        self._rank = dist.get_rank(group)
        self._mesh = mesh
        self._axes: tuple[str, ...] = () if mesh is None else (mesh.mesh_dim_names or ())
        self._device = device
        self._buffers: dict[str, tuple[int, ...]] = {}
        self._all = _holdings(model, layers)
        self._own: list[Holding] = []
        self._tied: list[tuple[Holding, Any]] = []  # with the group of its stages' ranks
        self._is_added_up = False
        self._shares = "tp" in self._axes or "dp_shard" in self._axes
        self._copies = [
            mesh.get_group(axis) for axis in self._axes if axis.startswith("dp_") and mesh
        ]
        self._following = Following(self._own_buffers, self._copies, device)

    # ── tracing ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def hollow(self) -> Iterator[None]:
        """Let the model have what stages compute with, shapes without memory, inside the block."""
        for one in self._all:
            if self._shares and one.whole is one.rest and not self.is_settled:
                one.whole = nn.Parameter(self._local(one), one.rest.requires_grad)
        kept = [(one, one.whole.data) for one in self._all]
        buffers = [] if self.is_settled else list(self._model.buffers())
        for buffer in buffers:
            buffer.data = buffer.data.to(self._device)
        for one in self._all:
            one.whole.data = _without_memory(one.whole, self._device)
            one.whole.requires_grad_(one.rest.requires_grad)
            # torch gives each stage that uses it a copy, and here all stages use this one.
            one.whole.__deepcopy__ = partial(_itself, one.whole)  # type: ignore[method-assign]
            one.show(one.whole)
        try:
            yield
        finally:
            for one, data in kept:
                one.whole.data = data
                del one.whole.__deepcopy__
                one.show(one.rest)

    def _local(self, one: Holding) -> Tensor:
        """Make an empty tensor shaped like what this rank computes of a parameter."""
        shape = list(one.rest.shape)
        if one.dim is not None:
            assert self._mesh is not None
            shape[one.dim] //= self._mesh["tp"].size()
        return _nothing(one.rest, shape, self._device)

    # ── dividing ──────────────────────────────────────────────────────────────────────────────

    def settle(self, users: Mapping[str, tuple[int, ...]]) -> Moved:
        """Keep what this rank uses, let go of the rest; gives parameters that are others now.

        ``users`` are ranks of the pipeline for each parameter and buffer that a trace uses.

        Ranks: all ranks of a pipeline call it.
        Errors: ConfigError for a parameter that was in another stage before.
        """
        known = {**{one.name: one.ranks for one in self._all}, **self._buffers}
        for name, ranks in users.items():
            if known.get(name) and not {*ranks} <= {*known[name]}:
                raise ConfigError(
                    f"{name} was used by {_ranks(known[name])} of the pipeline, and now by "
                    f"{_ranks(ranks)}",
                    "a parameter lies where the first batch used it",
                    "pass split= so that all uses are in one stage",
                )
        moved: Moved = {}
        for one in self._all:
            if not one.ranks and one.name in users:
                one.ranks = users[one.name]
                before = one.rest
                self._place(one)
                if one.rest is not before:
                    moved[id(before)] = (before, one.rest)
        self._buffers.update({n: r for n, r in users.items() if n not in known})
        self._own = [one for one in self._all if self._rank in one.ranks]
        self._tied = [
            (one, tied.group_of(one.ranks, self._group)) for one in self._own if len(one.ranks) > 1
        ]
        self.is_settled = True
        return moved

    def _place(self, one: Holding) -> None:
        old = one.rest
        if self._rank not in one.ranks:
            old.data = _nothing(old, old.shape, self._device)
            old.lies_elsewhere = True  # type: ignore[attr-defined]
        elif self._shares:
            assert self._mesh is not None
            full = old.detach().to(self._device)
            part = distribute_tensor(full, self._mesh, self._at_rest(one), src_data_rank=None)
            one.rest = nn.Parameter(part, old.requires_grad)
            old.data = old.data.new_empty(0)
        else:
            old.data = old.data.to(self._device)
        one.show(one.rest)

    def _at_rest(self, one: Holding) -> list[Placement]:
        places: list[Placement] = []
        for axis in self._axes:
            shard = {"tp": one.dim, "dp_shard": 0 if one.whole.dim() else None}.get(axis)
            places.append(Replicate() if shard is None else Shard(shard))
        return places

    def _computing(self, one: Holding, data: Placement) -> list[Placement]:
        rest = self._at_rest(one)
        return [data if axis != "tp" else here for axis, here in zip(self._axes, rest, strict=True)]

    # ── a batch ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Hold all of this rank's stages inside the block.

        Ranks: all ranks of a stage enter it.
        """
        if not self._shares:
            yield
            return
        with torch.no_grad():
            for one in self._own:
                places = self._computing(one, Replicate())
                one.whole.data = _tensor(one.rest).redistribute(placements=places).to_local()
                one.whole.requires_grad_(one.rest.requires_grad)
        try:
            yield
        finally:
            for one in self._own:
                one.whole.data = self._local(one)

    def before_forward(self, syncs: bool) -> None:
        """Bring buffers from the first copy of a stage to the others; ``syncs``: it is to train.

        Ranks: all ranks of a stage call it.
        """
        self._following.before_forward(syncs)

    def _own_buffers(self) -> list[Tensor]:
        named = self._model.named_buffers()
        return [one for name, one in named if self._rank in self._buffers.get(name, ())]

    def open_batch(self) -> None:
        """Take in more gradients, also of what several stages use."""
        for one, group in self._tied if self._is_added_up else ():
            tied.keep_once(one.rest, group)
        self._is_added_up = False

    def close_batch(self, syncs: bool, stays_apart: bool) -> None:
        """Do with gradients what is due after a batch; ``syncs``: it is the last of its window.

        A copy that ``stays_apart`` from the others steps alone, and yet with all its stages: what
        several of them use is added up at once.

        Ranks: all ranks of a pipeline call it.
        """
        if syncs:
            self._average()
        if syncs or (stays_apart and not self._shares):
            self._add_up_ties()

    def _average(self) -> None:
        """Average gradients over readers of data, and leave them where their parameters rest."""
        num = math.prod(map(dist.get_world_size, self._copies))
        for one in self._own if num > 1 or self._shares else ():
            grad = one.whole.grad
            if grad is None:
                continue
            grad.div_(num)
            if not self._shares:
                for group in self._copies:
                    dist.all_reduce(grad, group=group)
                continue
            assert self._mesh is not None
            one.whole.grad = None
            part = DTensor.from_local(
                grad, self._mesh, self._computing(one, Partial()), run_check=False
            )
            mean = part.redistribute(placements=self._at_rest(one))
            one.rest.grad = mean if one.rest.grad is None else one.rest.grad + mean

    def _add_up_ties(self) -> None:
        for one, group in self._tied:
            if one.rest.requires_grad:
                tied.add_up(one.rest, group)
        self._is_added_up = True

    def forget_pending(self) -> None:
        """Drop gradients that are not averaged yet."""
        for one in self._own if self._shares else ():
            one.whole.grad = None

    # ── states ────────────────────────────────────────────────────────────────────────────────

    def owners(self) -> dict[int, int]:
        """Say which rank of the pipeline speaks for each parameter, by its id."""
        return {id(one.rest): one.ranks[0] for one in self._all if one.ranks}

    def counted(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Leave out of ``parameters`` those that another rank speaks for."""
        owners = self.owners()
        return [one for one in parameters if owners.get(id(one), self._rank) == self._rank]

    def others(self) -> set[int]:
        """Give the ids of parameters that other ranks have."""
        return {id(one.rest) for one in self._all if one.ranks and self._rank not in one.ranks}

    def foreign(self) -> dict[str, Tensor]:
        """Give what stands in place of parameters that other ranks have, by all their names."""
        others = self.others()
        named = self._model.named_parameters(remove_duplicate=False)
        return {name: one for name, one in named if id(one) in others}

    def make_whole(self, tensor: Tensor) -> Tensor:
        """Bring one of the model's parameters or buffers from the rank that has it.

        Ranks: all ranks call it, in one order.
        """
        owner = next((rank for one, rank in self._tensors() if one is tensor), None)
        return tensor.detach() if owner is None else self._brought(tensor, owner)

    def _brought(self, tensor: Tensor, owner: int) -> Tensor:
        full = whole(tensor.detach()) if owner == self._rank else _room(tensor, self._device)
        full = full.to(self._device).contiguous()
        source = dist.get_global_rank(self._group, owner)
        watch.broadcast(full, source, group=self._group)
        return full

    def state(self, keep: bool) -> dict[str, Any]:
        """Give the model's whole state in the memory of the CPU; nothing if not ``keep``.

        Ranks: all ranks call it.
        """
        found: dict[int, Tensor] = {}
        for tensor, owner in self._tensors():
            full = self._brought(tensor, owner)
            if keep:
                found[id(tensor)] = full.cpu()
        state = self._model.state_dict(keep_vars=True) if keep else {}
        return {
            name: found.get(id(one), one.detach()) if isinstance(one, Tensor) else one
            for name, one in state.items()
        }

    def _tensors(self) -> Iterator[tuple[Tensor, int]]:
        for one in self._all:
            if one.ranks:
                yield one.rest, one.ranks[0]
        for name, buffer in self._model.named_buffers():
            if name in self._buffers:
                yield buffer, self._buffers[name][0]


def weakly(method: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Call a method of what lives as long as its model, without keeping that alive."""
    found = weakref.WeakMethod(method)

    def call(tensor: Tensor) -> Tensor:
        own = found()
        assert own is not None
        return own(tensor)

    return call


def _holdings(model: nn.Module, layers: Sequence[Divided]) -> list[Holding]:
    dims = {(one.layer, name): dim for one in layers for name, dim in one.dims.items()}
    found: dict[int, Holding] = {}
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                here = Holding(name, parameter, dims.get((module, attribute)))
                holding = found.setdefault(id(parameter), here)
                holding.places.append((module, attribute))
                if holding.dim != here.dim:
                    raise ConfigError(
                        f"{holding.name} and {name} are one weight, and the plan divides them in "
                        "two ways",
                        "a rank has one part of a weight, and both layers compute with it",
                        'name both in the plan, or none: an embedding "embedding_rowwise" and a '
                        'linear layer "colwise_rep" have the same parts',
                    )
    return list(found.values())


def _nothing(like: Tensor, shape: Sequence[int], device: torch.device) -> Tensor:
    """Make a tensor of a shape and one number, which is none."""
    number = float("nan") if like.dtype.is_floating_point or like.dtype.is_complex else 0
    return torch.full((), number, dtype=like.dtype, device=device).expand(tuple(shape))


def _room(like: Tensor, device: torch.device) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device)


def _without_memory(like: Tensor, device: torch.device) -> Tensor:
    """Make a tensor that can be traced and not be read."""
    made = torch.empty(like.shape, dtype=like.dtype, device=device)
    made.untyped_storage().resize_(0)
    return made


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}"


def _itself(parameter: nn.Parameter, memo: Any) -> nn.Parameter:
    return parameter


def _tensor(parameter: Tensor) -> DTensor:
    found = parameter.detach()
    assert isinstance(found, DTensor)
    return found
