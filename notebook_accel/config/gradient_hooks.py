"""What DDP's ways to send gradients become where another strategy averages them."""

from __future__ import annotations

from dataclasses import replace

from notebook_accel.config.wishes import DDP, FSDP, SingleDevice, Strategy, TensorParallel
from notebook_accel.errors import ConfigError

_DTYPES = ("fp16", "bf16")


def sent_as(wish: Strategy, ddp: DDP) -> Strategy:
    """Give ``wish`` with gradients that travel in the form that ``ddp`` says.

    What else is in ``ddp`` is about DistributedDataParallel alone, and other strategies need none
    of it. FSDP averages in any number format; low ranks are for whole matrices.

    Errors: ConfigError for a form that the strategy has not, and for two that differ.
    """
    hook = ddp.comm_hook
    if hook == "no" or isinstance(wish, SingleDevice):
        return wish
    if isinstance(wish, TensorParallel):
        data = sent_as(wish.data, ddp)
        assert isinstance(data, FSDP)
        return replace(wish, data=data)
    if not isinstance(wish, FSDP):
        raise ConfigError(
            f"comm_hook={hook!r} under strategy={type(wish).__name__}(...)",
            "it averages gradients by itself, in the numbers that they are computed in",
            "leave comm_hook out; DDP takes any, FSDP and TensorParallel 'fp16' and 'bf16'",
        )
    if hook not in _DTYPES:
        raise ConfigError(
            f"comm_hook={hook!r} under strategy={type(wish).__name__}(...)",
            "a low rank is of a whole gradient, and each rank averages only its rows of it",
            "write comm_hook='bf16' or 'fp16', or strategy=DDP(...)",
        )
    if wish.reduce_dtype not in (None, hook):
        raise ConfigError(
            f"comm_hook={hook!r} and FSDP(reduce_dtype={wish.reduce_dtype!r})",
            "both say in which numbers gradients are averaged",
            "leave one of them out",
        )
    return replace(wish, reduce_dtype=hook)
