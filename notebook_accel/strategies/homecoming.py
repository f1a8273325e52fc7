"""A model in pieces comes home whole when a launched function returns it.

No rank can send such a model alone. So between the return and the sending all ranks tell each
other which of their models lie in what they return, bring the parts of these together, and lay a
plain module in their place: the person's own classes, parameters and hooks, as before ``prepare``.

    rank 0 returns {"model": m, "loss": 0.9}   met {0} ┐ tell each ┌ gathers model 0, keeps it
    rank 1 returns None                        met { } ┘ other     └ gathers model 0 with rank 0

The first rank that returns a model gets all of it; others that do get it on the meta device: its
shapes, and none of its weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule

from notebook_accel.config.placement import FAKE
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import context
from notebook_accel.events.pulse import RETURN
from notebook_accel.ranks import watch
from notebook_accel.ranks.shards import is_sharded, whole
from notebook_accel.strategies.precision import plain_forward

# Others may still work when this rank has returned, as long as they like.
PATIENCE = timedelta(days=30)
# Attributes by which torch and DeepSpeed know modules that they have sharded or divided.
_MARKS = (
    "__composable_api_state",
    "_distribute_module_applied",
    *("ds_", "_ds_", "_external_params", "_original_parameters", "all_parameters"),
    *("pre_bwd_fn", "post_bwd_fn"),
)
Whole = Callable[[torch.Tensor], torch.Tensor]


class Homecoming:
    """The models in pieces of this process, in the order of ``prepare``, which ranks share."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[nn.Module]] = []
        self._ways: list[Whole | None] = []  # how their tensors are made whole, if not torch's way
        self._looks = False
        self._owner: dict[int, int] = {}  # id of a module or tensor -> its model
        self._met: set[int] = set()
        self._whole: dict[int, Any] = {}  # id of a module or tensor in pieces -> the plain one

    def expect(self, model: nn.Module, make_whole: Whole | None = None) -> None:
        """Note that ``model`` lies in pieces from now on.

        ``make_whole(tensor)`` gives the whole of any tensor of it, called by all ranks in one
        order; None is for torch's DTensors.
        """
        worker = context.current()
        if worker is not None and self.bring not in worker.before_return:
            # Those of a run before, here or in the process that this one was forked from.
            self._models.clear()
            self._ways.clear()
            worker.before_return.append(self.bring)
        self._models.append(weakref.ref(model))
        self._ways.append(make_whole)
        for part in model.modules():
            context.encoders[type(part)] = self.instead_of

    def bring(self, look: Callable[[], object]) -> None:
        """Make whole what any rank returns; ``look`` takes this rank's value apart, as sending it.

        Ranks: all ranks call it.
        Errors: RuntimeMisuse for a model that another rank has dropped.
        """
        models = [ref() for ref in self._models]
        for index, model in enumerate(models):
            if model is not None:
                _put_in_pieces(model)
                self._owner.update({id(one): index for one in _all_of(model)})
        met = self._find(look)
        gone = {index for index, model in enumerate(models) if model is None}
        if not dist.is_initialized():  # the person has left the group: nobody can be asked
            return
        is_played = dist.get_backend() == FAKE  # what others have is made up: shapes are all
        with watch.meeting(watch.pulse(), RETURN):  # it waits there for the others
            every = [(met, gone)] if is_played else _told(met, gone)
            for index in sorted(set[int]().union(*(has for has, _ in every))):
                first = next(rank for rank, (has, _) in enumerate(every) if index in has)
                _refuse_dropped(first, [rank for rank, (_, no) in enumerate(every) if index in no])
                model = models[index]
                assert model is not None
                keep = first == dist.get_rank() and not is_played
                self._gather(model, keep, self._ways[index])

    def instead_of(self, one: Any) -> Any:
        """Give what travels in place of a module or tensor in pieces.

        Errors: RuntimeMisuse for one that was not brought together.
        """
        if id(one) in self._whole:
            return self._whole[id(one)]
        if isinstance(one, nn.Module) and not any(map(_in_pieces, one.parameters())):
            return one  # another one of its class
        if not self._looks:
            raise _refusal(one)
        self._met.update({self._owner[id(one)]} if id(one) in self._owner else ())
        return None

    def _find(self, look: Callable[[], object]) -> set[int]:
        self._looks = True
        try:
            look()
        except Exception:  # sending it will say so; the others must not wait for this rank
            return set()
        finally:
            self._looks = False
        return self._met

    def _gather(self, model: nn.Module, keep: bool, make_whole: Whole | None) -> None:
        for one in [*model.parameters(), *model.buffers()]:
            full = one
            if is_sharded(one) or make_whole is not None or not keep:
                full = whole(one.detach()) if make_whole is None else make_whole(one)
                full = full.cpu() if keep else torch.empty_like(full, device="meta")
                if isinstance(one, nn.Parameter):
                    full = nn.Parameter(full, one.requires_grad)
            self._whole[id(one)] = full
        self._plain(model)

    def _plain(self, module: nn.Module) -> nn.Module:
        """Make the person's own module again; what it holds besides parts is shared with it."""
        if id(module) in self._whole:
            made: nn.Module = self._whole[id(module)]
            return made
        if isinstance(module, CheckpointWrapper):
            made = self._whole[id(module)] = self._plain(module._checkpoint_wrapped_module)
            return made
        kind: Any = next(one for one in type(module).__mro__ if not issubclass(one, FSDPModule))
        made = self._whole[id(module)] = kind.__new__(kind)
        vars(made).update(
            {name: one for name, one in vars(module).items() if not name.startswith(_MARKS)}
        )
        plain_forward(made)
        for name, hooks in vars(module).items():
            if name.endswith("_hooks") and isinstance(hooks, dict):
                kept = {number: one for number, one in hooks.items() if not _torchs(one)}
                vars(made)[name] = type(hooks)(kept)
        for name in ("_parameters", "_buffers"):
            held = vars(module)[name].items()
            vars(made)[name] = {n: None if one is None else self._whole[id(one)] for n, one in held}
        children = vars(module)["_modules"].items()
        vars(made)["_modules"] = {n: one and self._plain(one) for n, one in children}
        return made


def _put_in_pieces(model: nn.Module) -> None:
    """Let go of parts that a forward pass left whole, in the dtype of the computation."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _in_pieces(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` is a part or none: torch's, DeepSpeed's, or one of another stage."""
    if hasattr(parameter, "lies_elsewhere"):
        return True
    return is_sharded(parameter) or hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _all_of(model: nn.Module) -> Iterator[Any]:
    yield from model.modules()
    yield from model.parameters()
    yield from model.buffers()


def _told(met: set[int], gone: set[int]) -> list[tuple[set[int], set[int]]]:
    """Give what every rank has met and dropped.

    The group is new: a rank that is still at work calls nothing on it by mistake.
    """
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (met, gone), group=group)
    return every


def _torchs(hook: Any) -> bool:
    """Tell a hook of torch's own engines, or of DeepSpeed: what it does belongs to the run."""
    while inner := getattr(hook, "func", None) or getattr(hook, "hook", None):
        hook = inner  # functools.partial, and what torch puts around hooks that get the module
    return str(getattr(hook, "__module__", "")).startswith(("torch.distributed", "deepspeed"))


def _refuse_dropped(first: int, dropped: list[int]) -> None:
    if dropped:
        raise RuntimeMisuse(
            f"rank {first} returned a sharded model, and rank {dropped[0]} has dropped its parts "
            "of it",
            "each rank holds a part, and all parts are needed to make the model whole",
            "return the model on every rank: run[0] is whole then",
        )


def _refusal(one: Any) -> RuntimeMisuse:
    if isinstance(one, nn.Module):
        kind = type(one).__name__.removeprefix("FSDP")
        return RuntimeMisuse(
            f"a part of a sharded model ({kind}) was returned from a rank",
            "this rank holds only a piece of it, and pieces mean nothing outside the run",
            "return the prepared model itself, or accelerator.get_state_dict(model), called on all "
            "ranks: rank 0's is whole, and load_state_dict takes it",
        )
    return RuntimeMisuse(
        f"a sharded tensor (shape {tuple(one.shape)}) was returned from a rank",
        "this rank holds only a part of it, and parts mean nothing outside the run",
        "return accelerator.get_state_dict(model), called on all ranks; for one tensor, "
        "tensor.full_tensor()",
    )


HOME = Homecoming()
