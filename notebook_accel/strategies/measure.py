"""How large a model is and what its forward pass keeps, found out without memory or a device.

A copy of the model with fake tensors, which have shapes and types but no values, is run once. The
model itself may be on the meta device or too large for this machine, and stays as it is.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from notebook_accel.config.sizes import Kept, Sizes, Weight
from notebook_accel.errors import ConfigError, Explained
from notebook_accel.ranks.shards import is_sharded
from notebook_accel.strategies.blocks import find_blocks
from notebook_accel.strategies.calls import called_with
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.quiet import hushed

_FAKES = "torch._subclasses.fake_tensor"
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
_Storages = dict[int, int]  # number of a storage -> its bytes


def measure(
    model: nn.Module,
    batch: Any = None,
    precision: str = "no",
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
) -> Sizes:
    """Count a model's parameters, and what a forward pass on ``batch`` would keep.

    ``batch`` is what the model is called with: a tensor, a mapping of arguments, or several; of
    ``(inputs, targets)`` the model gets the first, where it takes one, and ``loss_fn`` both.

    Errors: ConfigError for a model that is sharded already or has no shapes yet.
    """
    model = uncompiled(model)
    _check(model)
    if loss_fn is not None and not (isinstance(batch, (list, tuple)) and len(batch) == 2):
        raise ConfigError(
            f"loss_fn was given, and a batch that is no pair but {type(batch).__name__}",
            "it is called as loss_fn(model(inputs), targets)",
            "pass (inputs, targets) as the batch",
        )
    blocks = _outermost_blocks(model)
    divided = _divided(model)
    weights = _weights(
        model, blocks, {name: dim for name, dim in divided.items() if dim is not None}
    )
    kept, why, attends = None, "no batch was given", False
    if batch is not None:
        kept, why, attends = _kept(model, batch, precision, loss_fn, list(blocks), divided)
    return Sizes(
        type(model).__name__,
        tuple(weights),
        sum(one.nbytes for one in model.buffers()),
        kept,
        why,
        _largest(model),
        bool(divided),
        attends,
    )


def described(batch: Any) -> str:
    """Write the shapes of the tensors of ``batch``: "8 x 3 x 224 x 224"."""
    shapes = [" x ".join(map(str, one.shape)) for one in tree_leaves(_plain(batch)) if _is(one)]
    return ", ".join(shape or "a number" for shape in shapes)


# ── counting ──────────────────────────────────────────────────────────────────────────────────


def _check(model: nn.Module) -> None:
    for name, one in model.named_parameters():
        if isinstance(one, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"{name} of {type(model).__name__} has no shape yet",
                "a lazy module takes its shape from the first batch",
                "run one batch through the model before",
            )
        if is_sharded(one):
            raise ConfigError(
                f"{type(model).__name__} is sharded already: this rank has a part of {name}",
                "memory is told from the whole model",
                "pass the model as it was before accelerator.prepare(model)",
            )


def _outermost_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Give the repeated blocks by name, in the model's order, none inside of another."""
    chosen = set(map(id, find_blocks(model, "auto")))
    found: dict[str, nn.Module] = {}
    for name, one in model.named_modules():
        if id(one) in chosen and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = one
    return found


@dataclass(frozen=True)
class _Cut:
    """How tensor parallelism divides a module: the dim of its weight, and what it gives."""

    dim: int
    begins: bool  # whether what it gives is divided
    on_sums: bool  # whether what it adds (a bias) is whole


def _divided(model: nn.Module) -> dict[str, _Cut]:
    """Give the modules that the model's own tensor parallel plan divides."""
    if not (getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)):
        return {}
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    from notebook_accel.strategies.tensor import plan_of

    try:
        plan = plan_of(model, None)
    except Explained:  # it has none, or one that we do not know
        return {}
    found: dict[str, _Cut] = {}
    for name, style in plan.items():
        if isinstance(style, (ColwiseParallel, RowwiseParallel)):
            by_columns = isinstance(style, ColwiseParallel)
            rows = isinstance(model.get_submodule(name), nn.Embedding)  # transposed to a linear
            is_whole = all(one.is_replicate() for one in style.output_layouts)
            found[name] = _Cut(int(by_columns == rows), not is_whole, not by_columns)
    return found


def _weights(
    model: nn.Module, blocks: Collection[str], divided: Mapping[str, _Cut]
) -> Iterator[Weight]:
    for name, one in model.named_parameters():
        inside = [n for n, block in enumerate(blocks) if name.startswith(f"{block}.")]
        cut = divided.get(name.rpartition(".")[0])
        is_whole = cut is None or (cut.on_sums and one.dim() < 2)
        dim = None if cut is None or is_whole else cut.dim if one.dim() > 1 else 0
        block = inside[0] if inside else -1
        yield Weight(tuple(one.shape), one.element_size(), one.requires_grad, block, dim)


def _largest(model: nn.Module) -> tuple[str, int]:
    sizes = {
        name or type(module).__name__: sum(one.nbytes for one in module.parameters(recurse=False))
        for name, module in model.named_modules()
    }
    name = max(sizes, key=lambda key: sizes[key])
    return name, sizes[name]


# ── running on fakes ──────────────────────────────────────────────────────────────────────────


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See what becomes of weights: their copies in other numbers, and outputs that are divided."""

    def __init__(self, own: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = own
        self.copies: _Storages = {}
        self.divided: set[int] = set()
        self.attends = False
        self.alive: list[Tensor] = []  # a storage that is gone leaves its number to another

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {_number(one) for one in tree_leaves((args, kwargs)) if _is(one)}
        made = [one for one in tree_leaves(out) if _is(one)]
        self.alive += made
        if func is torch.ops.aten._to_copy.default and before & self.own:
            self.copies |= {_number(one): _size(one) for one in made}
        self.attends = self.attends or "scaled_dot_product" in str(func)
        if before & self.divided:
            self.divided |= {_number(one) for one in made}
        return out

    def begin_divided(self, module: nn.Module, args: Any, out: Any) -> None:
        """Note that what ``module`` gave is divided over ranks, and what is made of it."""
        self.divided |= {_number(one) for one in tree_leaves(_plain(out)) if _is(one)}

    def end_divided(self, module: nn.Module, args: Any, out: Any) -> None:
        """Note that what ``module`` gave is whole again."""
        self.divided -= {_number(one) for one in tree_leaves(_plain(out)) if _is(one)}


class _Saved:
    """What autograd saves, by the block in which it was saved first."""

    def __init__(self) -> None:
        self.by_block: dict[int, _Storages] = {-1: {}}
        self.inputs: _Storages = {}
        self.seen: set[int] = set()
        self.alive: list[Tensor] = []
        self._now = -1

    def note(self, one: Tensor) -> Tensor:
        self.alive.append(one)
        number = _number(one)
        if number not in self.seen:
            self.seen.add(number)
            self.by_block.setdefault(self._now, {})[number] = _size(one)
        return one

    def enter(self, block: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._now = block
        for one in tree_leaves((args, kwargs)):
            if _is(one) and one.requires_grad:
                self.alive.append(one)
                self.inputs[_number(one)] = _size(one)

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self._now = -1


def _kept(
    model: nn.Module,
    batch: Any,
    precision: str,
    loss_fn: Callable[[Any, Any], Tensor] | None,
    blocks: Sequence[str],
    divided: Mapping[str, _Cut],
) -> tuple[Kept | None, str, bool]:
    """Run a fake copy of ``model``: what it keeps, or why it cannot, and whether it attends."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports much

    half = HALVES.get(precision)
    saved = _Saved()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), hushed(_FAKES, logging.CRITICAL):
            fake = _fake_copy(model)
            given = _map(batch, _fake)
            own = {_number(one) for one in [*fake.parameters(), *fake.buffers()]}
            watch = _Watch(own)
            _hook(fake, saved, watch, blocks, divided)
            keep = torch.autograd.graph.saved_tensors_hooks(saved.note, lambda one: one)
            cast = torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None)
            with torch.enable_grad(), torch.random.fork_rng(devices=[]), keep, watch:
                _call(fake, given, loss_fn, cast)
    except Exception as error:  # a model may do anything: then its activations stay unknown
        told = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        said = f"its forward pass failed on {described(batch) or 'this batch'}: {told}"
        return None, said, False
    skip = own | set(watch.copies)
    parts = {
        block: sum(size for number, size in storages.items() if number not in skip)
        for block, storages in saved.by_block.items()
    }
    # A block's input that the rest saves as well is there already.
    outside = saved.by_block[-1]
    inputs = sum(size for number, size in saved.inputs.items() if number not in outside)
    every = {number: size for one in saved.by_block.values() for number, size in one.items()}
    kept = Kept(
        parts[-1],
        tuple(parts.get(number, 0) for number in range(len(blocks))),
        inputs,
        sum(every[number] for number in watch.divided & set(every) - skip),
        sum(size for number, size in watch.copies.items() if number in every),
        described(batch),
    )
    return kept, "", watch.attends


def _fake_copy(model: nn.Module) -> nn.Module:
    """Copy ``model`` with fakes in place of its tensors; tied ones stay tied."""
    known: dict[int, Any] = {}
    for one in [*model.parameters(), *model.buffers()]:
        fake = _fake(one)
        if isinstance(one, nn.Parameter):
            fake = nn.Parameter(fake, one.requires_grad)
        known[id(one)] = fake
    made = copy.deepcopy(model, known)
    made.train()
    return made


def _hook(
    fake: nn.Module,
    saved: _Saved,
    watch: _Watch,
    blocks: Sequence[str],
    divided: Mapping[str, _Cut],
) -> None:
    for number, name in enumerate(blocks):
        block = fake.get_submodule(name)
        block.register_forward_pre_hook(partial(saved.enter, number), with_kwargs=True)
        block.register_forward_hook(saved.leave)
    for name, cut in divided.items():
        follow = watch.begin_divided if cut.begins else watch.end_divided
        fake.get_submodule(name).register_forward_hook(follow)


def _call(
    model: nn.Module, given: Any, loss_fn: Callable[[Any, Any], Tensor] | None, cast: Any
) -> None:
    if loss_fn is not None:
        with cast:
            out = _with(model, given[0])
        loss_fn(_full(out), given[1])
        return
    with cast:
        is_pair = isinstance(given, (list, tuple)) and not _takes(model, given)
        _with(model, given[0] if is_pair else given)


def _with(model: nn.Module, given: Any) -> Any:
    args, kwargs = called_with(given)
    return model(*args, **kwargs)


def _takes(model: nn.Module, given: Sequence[Any]) -> bool:
    """Tell whether ``model`` can be called with all of ``given``."""
    try:
        inspect.signature(model.forward).bind(*given)
    except TypeError:
        return False
    return True


def _full(tree: Any) -> Any:
    """Give outputs in float32, as the loop gets them."""
    return _map(tree, lambda one: one.float() if one.is_floating_point() else one)


def _fake(one: Tensor) -> Tensor:
    return torch.empty(one.shape, dtype=one.dtype)


def _map(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _map(value, change) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_map(value, change) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def _plain(tree: Any) -> Any:
    """Give containers that torch's trees do not know (of transformers) as plain ones."""
    return _map(tree, lambda one: one)


def _is(one: Any) -> bool:
    return isinstance(one, Tensor)


def _number(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())
