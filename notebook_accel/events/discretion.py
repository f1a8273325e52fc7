"""What may be written down of a run: names on a list, and never a key, token or password.

Nobody reads a record before it is shared. So the environment goes in by an allow-list of names,
and whatever looks like a secret, by the name it goes under or by its own looks, goes in as dots.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

HIDDEN = "•••"
MAX_TEXT = 200
MAX_ITEMS = 20
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of API_KEY, apiKey, api-key
_SECRET_PART = re.compile(
    r".*(?:secret|passw(?:or)?d|passphrase|credential|cookie|webhook).*|o?auth|authorization|pwd"
)
_NOT_SECRET = {"PWD", "OLDPWD"}  # folders
# A token or a key opens something, unless it is one of many of its kind in data.
_OPENERS = re.compile(r".*token|key|(?:api|access|secret|private|ssh)key")
_AMONG_MANY = {
    "batch", "begin", "bos", "cache", "class", "cls", "dict", "end", "eos", "every", "first",
    "foreign", "group", "image", "index", "input", "label", "last", "mask", "max", "metric", "min",
    "n", "num", "output", "pad", "partition", "per", "public", "sep", "sort", "special", "start",
    "state", "stop", "target", "text", "unk",
}  # fmt: skip
_OF_DATA = {
    "classification", "count", "dim", "dropout", "dtype", "emb", "embed", "embedding", "ids",
    "index", "indices", "len", "length", "level", "mask", "name", "names", "padding", "size",
    "type", "types",
}  # fmt: skip
# What keys of well-known services begin with, and whole addresses that hold a password.
_BEGINNINGS = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxa-",
    "xoxb-", "xoxp-", "xoxr-", "xoxs-", "AKIA", "AIza", "eyJ",
)  # fmt: skip
_KEYS = {one: re.compile(rf"\b{one}[\w.\-]{{12,}}") for one in _BEGINNINGS}
_LOGIN = re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)")
# Variables that explain how a run behaves; a name ending in _ stands for all that begin so.
_ALLOWED = (
    "ACCELERATE_", "COLAB_RELEASE_TAG", "CUBLAS_WORKSPACE_CONFIG", "CUDA_", "FSDP_", "GLOO_",
    "HIP_VISIBLE_DEVICES", "JAX_PLATFORMS", "KAGGLE_KERNEL_RUN_TYPE", "MASTER_ADDR", "MASTER_PORT",
    "MKL_NUM_THREADS", "NCCL_", "NOTEBOOK_ACCEL_", "OMP_", "PARALLELISM_CONFIG_", "PJRT_DEVICE",
    "PYTHONHASHSEED", "PYTORCH_", "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS",
    "TORCHINDUCTOR_", "TORCH_", "WORLD_SIZE", "XLA_FLAGS", "XLA_USE_BF16",
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Tell whether what goes under ``name`` must not be written down."""
    if name in _NOT_SECRET:
        return False
    parts = [part.lower() for part in _PARTS.findall(name)]
    if any(_SECRET_PART.fullmatch(part) for part in parts) or "private" in parts[:-1]:
        return True
    around = zip(["", *parts], parts, [*parts[1:], ""], strict=False)
    return any(
        _OPENERS.fullmatch(part) and before not in _AMONG_MANY and after not in _OF_DATA
        for before, part, after in around
    )


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Give the variables that may be kept, of this process and of ``more`` on top of it."""
    every = {**os.environ, **more}
    hide = hider(more)
    return {
        name: hide(every[name])[:MAX_TEXT]
        for name in sorted(every)
        if any(name.startswith(one) if one.endswith("_") else name == one for one in _ALLOWED)
        and not is_secret(name)
    }


def hider(more: Mapping[str, Any] | None = None) -> Callable[[str], str]:
    """Give a function that dots out of a text what looks like a secret, and the known ones.

    Known are the values that go under the name of a secret in the environment or in ``more``.
    """
    known = {
        value
        for name, value in {**os.environ, **(more or {})}.items()
        if isinstance(value, str) and len(value) >= 8 and is_secret(name) and not _is_place(value)
    }
    words = sorted(known, key=len, reverse=True)

    def hide(text: str) -> str:
        for word in words:
            text = text.replace(word, HIDDEN)
        for beginning, key in _KEYS.items():
            if beginning in text:  # looking for fixed words first: logs are long
                text = key.sub(HIDDEN, text)
        return _LOGIN.sub(HIDDEN, text) if "://" in text and "@" in text else text

    return hide


def _is_place(value: str) -> bool:
    """A file or folder that is there: the way to a secret at most, and part of many messages."""
    return os.path.isabs(value) and os.path.exists(value)


def named(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Give a call's arguments by name, defaults included."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a call that will fail anyway, or a builtin
        return {**{f"args[{number}]": one for number, one in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    return dict(bound.arguments)


def described(value: Any, name: str = "", depth: int = 2) -> Any:
    """Give ``value``, known as ``name``, as something for JSON; what is not simple by its type."""
    if is_secret(name) and not isinstance(value, (bool, NoneType)):
        return HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        text = hider()(value)
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    if depth and isinstance(value, (list, tuple)) and len(value) <= MAX_ITEMS:
        return [described(one, name, depth - 1) for one in value]
    if depth and isinstance(value, Mapping) and len(value) <= MAX_ITEMS:
        return {str(key): described(one, str(key), depth - 1) for key, one in value.items()}
    shape = getattr(value, "shape", None)
    size = f" {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"<{type(value).__name__}{size}>"
