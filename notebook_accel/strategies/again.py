"""A forward that is computed again for its backward, which keeps less: and changes nothing twice.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def again(function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call ``function``, a forward of ``module``, now and, for gradients, in their backward again.

    What batches leave in buffers of ``module``, as in batch norms, is what the first time left.
    Where gradients are wanted, a language model's cache of earlier tokens is not: it is left out.
    """
    if torch.is_grad_enabled():
        args = tuple(map(_no_cache, args))
        kwargs = {name: _no_cache(one) for name, one in kwargs.items()}
    if not torch.compiler.is_compiling():  # a compiled backward writes into no buffer
        kwargs["context_fn"] = partial(_both_times, module)
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def _no_cache(given: Any) -> Any:
    """Give None for a cache of transformers: a second forward would find it written."""
    return None if hasattr(given, "get_seq_length") else given


def _both_times(module: nn.Module) -> tuple[AbstractContextManager[None], ...]:
    return nullcontext(), _buffers_kept(module)


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    before = [(one, one.detach().clone()) for one in module.buffers()]
    try:
        yield
    finally:
        for one, was in before:
            one.data.copy_(was)  # past autograd: nothing that it has noted becomes another
