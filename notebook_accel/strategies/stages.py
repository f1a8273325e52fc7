"""A model cut into stages: where they begin, how it is traced, and whose parameters are whose.

Source: torch.distributed.pipelining.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from notebook_accel.config.budget import first_blocks
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.collectives import half_to_full, map_tensors, tensors_of
from notebook_accel.strategies.blocks import find_blocks
from notebook_accel.strategies.relay import hand_on

_MARKS = ("forward", "_orig_forward")  # what torch leaves in a module that begins a stage


def beginnings(
    model: nn.Module,
    num_stages: int,
    split: Collection[str] | None = None,
    class_names: Collection[str] = (),
) -> list[str]:
    """Name the modules where the second stage begins, the third, and so on.

    Without ``split`` they are blocks of the model (modules of ``class_names``, if there are any),
    so that stages hold about equally many parameters of blocks.

    Errors: ConfigError for names that are not in the model, and for too few blocks.
    """
    names = [name for name, _ in model.named_modules() if name]
    if split is not None:
        for name in split:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise ConfigError(
                    f"Pipeline(split=...) names {name!r}, which is not in {type(model).__name__}",
                    "a stage begins at a module of the model",
                    f"write {near[0]!r}" if near else "look at dict(model.named_modules())",
                )
        return list(split)
    chosen = set(map(id, find_blocks(model, "auto", class_names)))
    blocks: dict[str, int] = {}
    for name, one in model.named_modules():
        if id(one) in chosen and not any(name.startswith(f"{outer}.") for outer in blocks):
            blocks[name] = sum(parameter.numel() for parameter in one.parameters())
    if len(blocks) < num_stages:
        raise ConfigError(
            f"Pipeline(stages={num_stages}), but {len(blocks)} blocks are known in "
            f"{type(model).__name__}",
            "each stage needs a block: a module of the model's list of like modules, of its "
            "_no_split_modules, or of an nn.Sequential",
            'pass split=("layer3", ...) with the modules where stages begin, or ask for fewer',
        )
    found = list(blocks)
    return [found[number] for number in first_blocks(list(blocks.values()), num_stages)]


def num_microbatches(num_rows: int, wanted: int, num_ranks: int = 1) -> int:
    """How many equal parts ``num_rows`` rows are cut into: at most ``wanted``.

    Equal parts, for the mean of their means is then the mean over all rows. ``num_ranks`` that
    have several stages each take turns in rounds of equally many parts.
    """

    def fits(num: int) -> bool:
        return num_rows % num == 0 and (num_ranks == 1 or num % max(1, num // num_ranks) == 0)

    return max(num for num in range(1, max(wanted, 1) + 1) if num == 1 or fits(num))


def num_rows(tree: Any) -> int:
    """How many rows the tensors of ``tree`` have."""
    found = {one.shape[0] for one in tensors_of(tree) if one.dim()}
    if len(found) != 1:
        raise ConfigError(
            f"a batch for a pipeline has tensors of {sorted(found) or 'no'} rows",
            "it is cut along the first dimension, the same way for all of its tensors",
            "give batches of tensors whose first dimension is the sample",
        )
    return found.pop()


def cut(
    model: nn.Module, begins: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Trace ``model`` with one micro-batch and cut what was traced at the modules ``begins``.

    Gives torch's ``Pipe``, and the structure of the model's output, of which the last stage gives
    the flat tensors. The model is as it was, and shares its parameters with the stages. What a
    language model would keep for its next tokens (``config.use_cache``) is no part of the output.

    Errors: ConfigError for arguments that are no tensors, for a model that cannot be traced, and
    for one whose stages are never begun.
    """
    from torch.distributed.pipelining import SplitPoint, pipeline

    odd = [one for one in pytree.tree_leaves([args, dict(kwargs)]) if not isinstance(one, Tensor)]
    if odd:
        raise ConfigError(
            f"{type(model).__name__} in stages is called with {odd[0]!r}",
            "what goes through a pipeline is cut into micro-batches, and only tensors can be",
            "leave it out of the call, as a default of forward()",
        )
    found: list[Any] = []

    def note(module: nn.Module, inputs: Any, outputs: Any) -> None:
        found.append(pytree.tree_structure(outputs))

    def take(module: nn.Module, args: Any, kwargs: Any) -> Any:
        # Stages hand on what stages compute: so the first one computes what all may be given.
        return map_tensors(Tensor.clone, args), map_tensors(Tensor.clone, kwargs)

    marked = [model.get_submodule(name) for name in begins]
    before = [{key: vars(one)[key] for key in _MARKS if key in vars(one)} for one in marked]
    handles = (
        model.register_forward_pre_hook(take, with_kwargs=True),
        model.register_forward_hook(note),
    )
    try:
        with torch.enable_grad(), warnings.catch_warnings(), _no_caches(model):
            warnings.simplefilter("ignore", FutureWarning)  # about torch's own use of older names
            pipe = pipeline(
                model,
                mb_args=args,
                mb_kwargs=dict(kwargs),
                split_spec=dict.fromkeys(begins, SplitPoint.BEGINNING),
            )
    except Exception as reason:
        raise ConfigError(
            f"{type(model).__name__} cannot be traced: {_first_line(reason)}",
            "a pipeline cuts up what one forward of the model does, and that must not depend on "
            "the numbers in a batch",
            "take what depends on them out of forward(), or use strategy=FSDP()",
        ) from reason
    finally:
        for handle in handles:
            handle.remove()
        for one, kept in zip(marked, before, strict=True):
            for key in _MARKS:
                vars(one).pop(key, None)
            vars(one).update(kept)
    if pipe.num_stages != len(begins) + 1:
        raise ConfigError(
            f"{type(model).__name__} was cut into {pipe.num_stages} stages, not {len(begins) + 1}",
            f"its forward does not run each of {', '.join(begins)} once, one after the other",
            "pass split= with modules that forward() calls once",
        )
    hand_on(pipe)
    return pipe, found[-1]


@contextlib.contextmanager
def _no_caches(model: nn.Module) -> Iterator[None]:
    """Let a language model give what it computes without its cache, which is no tensor."""
    configs: dict[int, Any] = {id(one): getattr(one, "config", None) for one in model.modules()}
    caching = [one for one in configs.values() if getattr(one, "use_cache", None) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


def shaped(outputs: Any, structure: Any) -> Any:
    """Give what the last stage puts out the structure that the model's output has.

    Errors: ConfigError for an output that is not all made by stages.
    """
    leaves = pytree.tree_leaves(outputs)
    if len(leaves) != structure.num_leaves:
        raise ConfigError(
            f"a model in stages gives {structure.num_leaves} things, of which its last stage makes "
            f"{len(leaves)}",
            "only tensors that stages compute travel to the end of a pipeline",
            "give back neither an input as it is nor what is no tensor",
        )
    return pytree.tree_unflatten(leaves, structure)


def users(model: nn.Module, pipe: Any) -> dict[str, list[int]]:
    """Say which stages use each parameter and buffer; what no stage uses is left out."""
    names = {id(one): name for name, one in named_tensors(model)}
    found: dict[str, list[int]] = {}
    for stage in range(pipe.num_stages):
        for _, one in named_tensors(pipe.get_stage_module(stage)):
            if id(one) in names:
                found.setdefault(names[id(one)], []).append(stage)
    return found


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """List parameters and buffers with their names."""
    return [*model.named_parameters(), *model.named_buffers()]


class MeanLoss:
    """The loss of one micro-batch after the other, weighted; what torch's schedules call.

    A schedule is made once, and the loss function may be another at each batch.
    """

    def __init__(self) -> None:
        self.begin(lambda outputs, targets: outputs, None, 1.0)

    def begin(
        self, function: Callable[[Any, Any], Tensor], targets: Any, weight: float | Tensor
    ) -> None:
        """Take the next batch: its function of flat outputs, its targets, what a loss weighs."""
        self._function, self._targets, self._weight = function, targets, weight
        self._seen: list[Tensor] = []

    def __call__(self, outputs: Any, rows: Tensor) -> Tensor:
        """Give the weighted loss of the micro-batch of these ``rows``."""
        first, last = int(rows[0]), int(rows[-1])
        targets = map_tensors(
            lambda one: one[first : last + 1] if one.dim() else one, self._targets
        )
        loss = self._function(map_tensors(half_to_full, outputs), targets)
        self._seen.append(loss.detach().float())
        return loss * self._weight

    def end(self) -> Tensor:
        """Give the batch's loss, and let go of its targets."""
        mean = torch.stack(self._seen).mean()
        self.begin(self._function, None, 1.0)
        return mean


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].removesuffix(".")
