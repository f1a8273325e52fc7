"""A prepared model's forward where sequences are divided: it is given parts, and sees the whole.

What a model is told of its tokens beside them (positions, padding, labels to be shifted) would be
told of a part; here it is told of the whole sequence.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from notebook_accel.errors import ConfigError, Explained, RuntimeMisuse
from notebook_accel.ranks.collectives import map_tensors, tensors_of
from notebook_accel.strategies.layout import uneven_heads
from notebook_accel.strategies.precision import MixedForward, Precision
from notebook_accel.strategies.sequence_attention import attending, summed
from notebook_accel.strategies.sequence_parts import IGNORED, Group, shifted

NUM_TRIED = 8  # tokens of each rank that are computed both ways at a model's first call
_CLOSE, _ROUGH = 2e-3, 6e-2  # how much of an output's size rounding may change, in half precision


class Sharing:
    """How one engine's models share sequences.

    ``lengths`` gives the lengths that parts have now, None where sequences are whole; ``checks``
    says whether models are tried at their first call, ``paused`` whether they are given whole
    sequences for a while.
    """

    def __init__(
        self, group: Group, exchange: str, checks: bool, lengths: Callable[[], set[int] | None]
    ) -> None:
        self.group = group
        self.exchange = exchange
        self.checks = checks
        self.lengths = lengths
        self.paused = False

    def attending(self) -> Any:
        """Give the context in which attention sees whole sequences."""
        return attending(self.exchange, self.group.group)


class SequenceForward(MixedForward):
    """A module's forward, plain or in some precision, on this rank's part of sequences.

    Pickled it becomes the plain forward again, as precision does.
    """

    def __init__(self, inside: Any, precision: Precision, sharing: Sharing) -> None:
        self.inside = inside
        super().__init__(inside.forward if isinstance(inside, MixedForward) else inside, precision)
        self.sharing = sharing
        self._shifts = shifts(self.forward.__self__)
        self._takes = list(inspect.signature(self.forward).parameters)
        self._untried = sharing.checks

    @property
    def upcasts(self) -> bool:
        """Whether half-precision outputs are made float32."""
        return bool(getattr(self.inside, "upcasts", False))

    @upcasts.setter
    def upcasts(self, value: bool) -> None:
        if isinstance(self.inside, MixedForward):
            self.inside.upcasts = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward; attention sees whole sequences.

        Ranks: all ranks of a sequence call it together.
        Errors: RuntimeMisuse for what is no part of a sequence, and for a model that computes
        otherwise with parts.
        """
        length, lengths = _length([args, kwargs]), self.sharing.lengths()
        continues = kwargs.get("past_key_values") is not None
        generates = (continues or kwargs.get("use_cache")) and not torch.is_grad_enabled()
        if generates or lengths is None or self.sharing.paused:  # sequences are whole
            if length in (lengths or ()) and not (continues or self.sharing.paused):
                raise self._may_be_either(length)
            return self.inside(*args, **kwargs)
        if length is None or length not in lengths:
            raise self._not_a_part(length, lengths)
        if self._untried:
            self._untried = False
            self._try(length, args, kwargs)
        return self._on_parts(length, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> SequenceForward:
        return SequenceForward(copy.deepcopy(self.inside, memo), self.precision, self.sharing)

    def _on_parts(self, length: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        told = {**kwargs, **self._told(length, args, kwargs)}
        with self.sharing.attending():
            outputs = self.inside(*args, **told)
        counted = told.get("shift_labels" if self._shifts else "labels")
        if isinstance(counted, Tensor) and "num_items_in_batch" not in told:
            _share_loss(outputs, counted, length, self.sharing.group)
        return outputs

    def _told(self, length: int, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give the arguments that tell of the whole sequence what would be told of a part."""
        told: dict[str, Any] = {}
        group, model = self.sharing.group, self.forward.__self__
        device = tensors_of([args, kwargs])[0].device
        if "position_ids" in self._takes[len(args) :] and kwargs.get("position_ids") is None:
            first = group.rank * length
            told["position_ids"] = torch.arange(first, first + length, device=device)[None]
        padding = kwargs.get("attention_mask")
        if (
            isinstance(padding, Tensor)
            and padding.shape[1:] == (length,)
            and is_transformers(model)
        ):
            told["attention_mask"] = _mask_of_padding(group.whole(padding), model)
        labels = kwargs.get("labels")
        if kwargs.get("shift_labels") is not None or not self._shifts:
            return told
        if isinstance(labels, Tensor) and labels.shape[1:] == (length,):
            told["shift_labels"] = group.part(shifted(group.whole(labels)))
        return told

    # ── the trial ─────────────────────────────────────────────────────────────────────────────

    def _try(self, length: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the first tokens in parts and as a whole, and compare.

        Errors: RuntimeMisuse, on all ranks of the sequence, where they differ.
        """
        group, num = self.sharing.group, min(NUM_TRIED, length)

        def begin(one: Tensor) -> Tensor:
            if one.dim() < 2 or one.shape[1] != length:
                return one
            return group.whole(one).narrow(1, 0, num * group.size)

        def part(one: Tensor) -> Tensor:
            return group.part(one) if one.dim() > 1 and one.shape[1] == num * group.size else one

        begun = map_tensors(begin, [args, kwargs])
        model = self.forward.__self__
        if is_transformers(model):  # what is computed for padding has no meaning
            begun[1].pop("attention_mask", None)
        tolerance = _ROUGH if self.precision.dtype is not None else _CLOSE

        def differs(expected: Any) -> float:
            mine = map_tensors(part, begun)
            found = self._on_parts(num, tuple(mine[0]), mine[1])
            return _difference(tensors_of(expected), tensors_of(found), num, group, tolerance)

        whole = self._tried(lambda: self.inside(*begun[0], **begun[1]), num)
        odd = whole and self._tried(lambda: differs(whole[0]), num)
        if not odd:
            return
        worst = float(group.whole(torch.tensor(odd), 0).max())
        if worst > 0:
            raise self._differs(worst, num)

    def _tried(self, compute: Callable[[], Any], num: int) -> list[Any]:
        """Give what ``compute`` gives, in a list; an empty one where any rank cannot compute it."""
        group, model = self.sharing.group, self.forward.__self__
        reason: Exception | None = None
        computed = None
        try:
            with _trying(model):
                computed = compute()
        except Explained:
            raise
        except Exception as error:  # whatever a model raises that takes no short sequences
            reason = error
        failed = group.whole(torch.tensor([float(reason is not None)]), 0).tolist()
        if reason is not None and not any(failed[: group.rank]):
            print(
                f"note: {type(model).__name__} was not tried with {num * group.size} tokens "
                f"({type(reason).__name__}: {reason}): whether it computes alike with parts of "
                "sequences is not known"
            )
        return [] if any(failed) else [computed]

    def _differs(self, odd: float, num: int) -> RuntimeMisuse:
        name, size = type(self.forward.__self__).__name__, self.sharing.group.size
        return RuntimeMisuse(
            f"{name} computes otherwise with parts of a sequence: {num * size} tokens in {size} "
            f"parts differ from the same tokens as a whole by {odd:.0%} of their size",
            "tokens may meet in F.scaled_dot_product_attention only; what looks at other tokens or "
            "at places elsewhere (torch.arange(x.shape[1]), a convolution, a mean over tokens, "
            "attention written by hand) sees this rank's part",
            "take places as an argument of forward named position_ids (it is given the place of "
            "each token), attend by F.scaled_dot_product_attention; if the model is right as it "
            "is, write SequenceParallel(check=False)",
        )

    def _may_be_either(self, length: int | None) -> RuntimeMisuse:
        return RuntimeMisuse(
            f"{type(self.forward.__self__).__name__} was given {length} tokens with use_cache=True "
            "and without gradients",
            "parts of sequences have as many, and a prompt that text is to follow is whole: it "
            "cannot be told which of them this is",
            "leave use_cache out to evaluate parts; write `with whole_sequences(model):` around a "
            "call with whole sequences",
        )

    def _not_a_part(self, length: int | None, lengths: set[int]) -> RuntimeMisuse:
        name = type(self.forward.__self__).__name__
        given = "no sequence" if length is None else f"{length} tokens"
        known = f"the parts of a sequence have {' or '.join(map(str, sorted(lengths)))}"
        return RuntimeMisuse(
            f"{name} was given {given}, where "
            f"{known if lengths else 'no prepared loader has given a part yet'}",
            "a rank has a part of each sequence: parts that are shortened or shifted in the loop "
            "miss tokens at their ends, and other sequences are no parts",
            "shift inputs and targets against each other before they are cut, in the dataset or "
            "collate_fn; write `with whole_sequences(model):` around a call with whole sequences",
        )


@contextmanager
def whole_sequences(model: nn.Module) -> Iterator[None]:
    """Let a prepared ``model`` take whole sequences inside the block, as no loader has cut them.

    Every rank computes them. Where sequences are not divided nothing changes.

    Ranks: where the model is in shards, all ranks enter it, with sequences of equal shapes.
    """
    forwards = [vars(one).get("forward") for one in model.modules()]
    found = [one.sharing for one in forwards if isinstance(one, SequenceForward)]
    before = [one.paused for one in found]
    for one in found:
        one.paused = True
    try:
        yield
    finally:
        for one, was in zip(found, before, strict=True):
            one.paused = was


def check_model(model: nn.Module, size: int, exchange: str) -> None:
    """Refuse a model whose attention cannot be divided, as far as it says so.

    Errors: ConfigError.
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, "sdpa"):
        raise ConfigError(
            f"{name} computes attention by {attention!r}",
            "sequences are divided inside F.scaled_dot_product_attention",
            'load it with attn_implementation="sdpa"',
        )
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        raise ConfigError(
            f"{name} has attention with a sliding window ({window} tokens)",
            "its mask would be that of a part of the sequence",
            "set config.sliding_window to None before the model is built, if it may see more",
        )
    if exchange != "heads":
        return
    found = {num for one in [config] if (num := getattr(one, "num_attention_heads", None))}
    found |= {one.num_heads for one in model.modules() if isinstance(one, nn.MultiheadAttention)}
    for num in sorted(found):
        if isinstance(num, int) and num % size:
            raise uneven_heads(f"{name} has attention with {num} heads", num, size, "sequence")


def takes_shifted_labels(model: nn.Module) -> bool:
    """Tell whether ``model(**batch)`` may hold ``shift_labels``."""
    return shifts(model) or "shift_labels" in inspect.signature(model.forward).parameters


def is_transformers(model: Any) -> bool:
    """Tell whether ``model`` is one of the library transformers, or made like one."""
    return hasattr(getattr(model, "config", None), "_attn_implementation")


def shifts(model: Any) -> bool:
    """Tell whether the loss inside ``model`` takes for each token the label of the next one."""
    loss = getattr(model, "loss_function", None)
    return callable(loss) and "shift_labels" in inspect.signature(loss).parameters


def _mask_of_padding(padding: Tensor, model: nn.Module) -> Tensor | None:
    """Give the mask of whole sequences for one with padding; None where it can be left out.

    That is, if nothing is padded, and if it is the ends of sequences whose tokens see earlier ones
    only: what is computed at the places of padding then differs, and has no meaning.
    """
    real = padding.bool()
    is_causal = any(getattr(one, "is_causal", False) for one in model.modules())
    at_end = bool((real[:, :-1] >= real[:, 1:]).all())
    if bool(real.all()) or (is_causal and at_end):
        return None
    seen = real[:, None, None, :]
    if not is_causal:
        return seen
    square = torch.ones(real.shape[1], real.shape[1], dtype=torch.bool, device=real.device)
    return square.tril() & seen


def _share_loss(outputs: Any, counted: Tensor, length: int, group: Group) -> None:
    """Let each rank's ``outputs["loss"]`` be that of the whole sequence, weighted by its tokens."""
    loss = outputs.get("loss") if isinstance(outputs, MutableMapping) else None
    if not isinstance(loss, Tensor) or loss.dim() or counted.shape[1:] != (length,):
        return
    own = (counted != IGNORED).sum()
    total = group.whole(own[None], 0).sum().clamp(min=1)
    weighted = torch.where(own > 0, loss, torch.zeros_like(loss)) * (own / total)
    outputs["loss"] = summed(weighted, group.group)


def _length(tree: Any) -> int | None:
    """How many tokens a batch has: dimension 1 of the first tensor that has one."""
    return next((one.shape[1] for one in tensors_of(tree) if one.dim() > 1), None)


def _difference(
    expected: list[Tensor], found: list[Tensor], num: int, group: Group, tolerance: float
) -> float:
    """By how much of its size an output differs between whole and parts; 0 where it may."""
    if len(expected) != len(found):
        return 1.0
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.dim() > 1 and one.shape[1] == num * group.size:
            one = group.part(one)
        if not other.dim() or not other.is_floating_point():
            continue
        if one.shape != other.shape:
            return 1.0
        size = one.float().norm()
        odd = float((one.float() - other.float()).norm() / size.clamp(min=1e-12))
        if odd > (tolerance if other.dtype.itemsize > 2 else _ROUGH):
            worst = max(worst, odd)
    return worst


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    """Run ``model`` inside the block without leaving a trace in it: no gradients, no dropout."""
    training = [one for one in model.modules() if one.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for one in training:
            one.training = True
