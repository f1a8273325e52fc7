"""Attention over a sequence of which each rank has a part: functions for the engine and a cell.

``ulysses`` gives each rank all tokens of some heads, ``gather_keys`` all keys and values; both take
what ``F.scaled_dot_product_attention`` takes, and a group. ``attending`` puts one of them in its
place inside a block.

ulysses, 2 ranks     before: half the tokens, all heads     between: all tokens, half the heads
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from notebook_accel.errors import RuntimeMisuse
from notebook_accel.strategies.layout import uneven_heads

_NAME = "scaled_dot_product_attention"
_plain = F.scaled_dot_product_attention


def ulysses(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend over the whole sequence, each rank for some of the heads.

    Shapes: query ``[B, H, S/N, D]`` on each of N ranks, as is the result; H divides by N. A mask
    is that of whole sequences, or ``[B, 1, 1, S/N]`` of this rank's keys.
    Ranks: all ranks of ``group`` call it, also in backward.
    Errors: ConfigError for a number of heads that does not divide.
    Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    num_heads = query.shape[1] if query.dim() == 4 else 1
    if num_heads % size:
        raise uneven_heads(f"attention with {num_heads} heads", num_heads, size, "sequence")
    mask = _whole_mask(attn_mask, query, key, group)
    if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
        mask = mask.chunk(size, -3)[rank]
    if key.shape[1] % size:  # fewer heads of keys than ranks: each rank takes copies
        times = num_heads // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if query.shape == key.shape == value.shape:  # one message instead of three
        query, key, value = _to_heads(torch.cat([query, key, value]), group).chunk(3)
    else:
        query, key, value = (_to_heads(one, group) for one in (query, key, value))
    out = _plain(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _to_tokens(out, group)


def gather_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend from this rank's tokens to the whole sequence, for all heads.

    Under a causal mask later ranks compute more: they see more keys.

    Shapes: as for ``ulysses``, with any number of heads.
    Ranks: all ranks of ``group`` call it, also in backward.
    Errors: RuntimeMisuse for a mask beside ``is_causal``.
    Source: Dubey et al. 2024, "The Llama 3 herd of models", section 3.3.2.
    """
    rank, num_own = dist.get_rank(group), query.shape[-2]
    if is_causal and attn_mask is not None:
        raise RuntimeMisuse(
            "attention with attn_mask and is_causal=True",
            "each rank makes a causal mask for its own tokens, and there is one mask only",
            "make attn_mask causal itself and leave is_causal out",
        )
    mask: Any = _whole_mask(attn_mask, query, key, group)
    key, value = whole(key, -2, group), whole(value, -2, group)
    if mask is not None and mask.shape[-2] > num_own:
        mask = mask.narrow(-2, rank * num_own, num_own)
    if is_causal and rank:
        seen = (rank + 1) * num_own
        key, value = key.narrow(-2, 0, seen), value.narrow(-2, 0, seen)
        mask, is_causal = _causal_at_end(num_own, seen, query.device), False
    elif is_causal:
        key, value = key.narrow(-2, 0, num_own), value.narrow(-2, 0, num_own)
    with _in_place(_plain):  # torch's causal biases know their attention by its name
        return _plain(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


BY_EXCHANGE: dict[str, Callable[..., Tensor]] = {"heads": ulysses, "keys": gather_keys}


@contextmanager
def attending(exchange: str, group: Any) -> Iterator[None]:
    """Let ``F.scaled_dot_product_attention`` see whole sequences inside the block.

    It is exchanged for all threads: a backward on a GPU, which may compute a forward again, runs in
    a thread of its own. Modules that would go past it by fused kernels do not.
    """
    function = BY_EXCHANGE[exchange]

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(query, key, value, group, *args, **kwargs)

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _in_place(attention):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def _in_place(attention: Callable[..., Tensor]) -> Iterator[None]:
    before = vars(F)[_NAME]
    vars(F)[_NAME] = attention
    try:
        yield
    finally:
        vars(F)[_NAME] = before


def whole(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """Join the parts that ranks have along ``dim``; gradients go back to where the parts are.

    Ranks: all ranks of ``group`` call it with equal shapes, also in backward.
    """
    joined: Tensor = _Whole.apply(tensor, dim % tensor.dim(), group)  # type: ignore[no-untyped-call]
    return joined


def summed(tensor: Tensor, group: Any) -> Tensor:
    """Add a tensor up over the ranks; each rank's gradient is the sum of what all ranks ask.

    Ranks: all ranks of ``group`` call it with equal shapes, also in backward.
    """
    return whole(tensor[None], 0, group).sum(0)


class _Exchange(torch.autograd.Function):
    """Row n of a tensor goes to rank n; row n comes from rank n. It is its own inverse."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchanged(rows, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Exchange.apply(gradient, ctx.group), None  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        own = tensor.contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own, group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parts = torch.stack(gradient.chunk(dist.get_world_size(ctx.group), ctx.dim))
        mine = _Exchange.apply(parts, ctx.group)  # type: ignore[no-untyped-call]
        return mine.sum(0), None, None


def _exchanged(rows: Tensor, group: Any) -> Tensor:
    rows = rows.contiguous()
    come = torch.empty_like(rows)
    dist.all_to_all_single(come, rows, group=group)
    return come


def _to_heads(tensor: Tensor, group: Any) -> Tensor:
    """From all heads of this rank's tokens to all tokens of this rank's heads."""
    size = dist.get_world_size(group)
    rows = torch.unflatten(tensor, 1, (size, -1)).movedim(1, 0)  # [N, B, H/N, S/N, D]
    come: Tensor = _Exchange.apply(rows, group)  # type: ignore[no-untyped-call]
    return come.movedim(0, 2).flatten(2, 3)


def _to_tokens(tensor: Tensor, group: Any) -> Tensor:
    """Back from all tokens of this rank's heads to all heads of this rank's tokens."""
    size = dist.get_world_size(group)
    rows = torch.unflatten(tensor, 2, (size, -1)).movedim(2, 0)  # [N, B, H/N, S/N, D]
    come: Tensor = _Exchange.apply(rows, group)  # type: ignore[no-untyped-call]
    return come.movedim(0, 1).flatten(1, 2)


def _causal_at_end(num_own: int, seen: int, device: torch.device) -> Any:
    """Give the causal mask of the last ``num_own`` of ``seen`` tokens."""
    if device.type == "cuda" and not torch.compiler.is_compiling():
        return causal_lower_right(num_own, seen)  # which flash kernels know
    square = torch.ones(num_own, seen, dtype=torch.bool, device=device)
    return square.tril(seen - num_own)


def _whole_mask(mask: Tensor | None, query: Tensor, key: Tensor, group: Any) -> Tensor | None:
    """Give the mask of whole sequences, from one of whole sequences or of this rank's keys.

    Errors: RuntimeMisuse for a mask between this rank's tokens only.
    """
    if mask is None:
        return None
    size = dist.get_world_size(group)
    (asks, seen), own, own_keys = mask.shape[-2:], query.shape[-2], key.shape[-2]
    if seen in (1, own_keys * size) and asks in (1, own * size):
        return mask
    if seen == own_keys and asks == 1:
        return whole(mask, -1, group)
    raise RuntimeMisuse(
        f"an attention mask of {asks} x {seen} tokens, where a sequence has {own * size}",
        f"this rank has {own} of the tokens, and attention sees all: the mask says nothing of "
        "tokens on other ranks",
        "write is_causal=True for a causal mask; make any other for whole sequences, "
        f"{own * size} x {own_keys * size}",
    )
