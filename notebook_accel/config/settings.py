"""All settings in the order in which they are shown, and how to find one by any of its names."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from notebook_accel.config.catalog.compiling import DYNAMO, FP8
from notebook_accel.config.catalog.engines import DEEPSPEED, MEGATRON
from notebook_accel.config.catalog.machines import MACHINES, MPI, SAGEMAKER, TPU
from notebook_accel.config.catalog.run import RUN
from notebook_accel.config.catalog.setting import Setting, Word
from notebook_accel.config.catalog.sharding import FSDP, PARALLELISM

__all__ = [
    "SECTIONS",
    "SETTINGS",
    "Setting",
    "Word",
    "alone",
    "by_key",
    "by_variable",
    "nearest",
]

_TABLES = (RUN, MACHINES, FSDP, DEEPSPEED, PARALLELISM, MEGATRON, DYNAMO, FP8, MPI, TPU, SAGEMAKER)
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {one.name: one for rows in _TABLES for one in rows}
)
# Section -> what its settings are about.
SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "run": "The run",
        "machines": "Several machines",
        "fsdp": "Fully sharded data parallelism (FSDP)",
        "deepspeed": "DeepSpeed",
        "parallelism": "Ranks along several axes",
        "megatron": "Megatron-LM",
        "dynamo": "Compilation",
        "fp8": "8-bit numbers",
        "mpi": "MPI",
        "tpu": "TPU",
        "sagemaker": "Amazon SageMaker",
    }
)


@functools.cache
def by_key() -> Mapping[str, Setting]:
    """Give the setting of each path in a file, Accelerate's and ours."""
    return {key: one for one in SETTINGS.values() for key in _keys(one)}


@functools.cache
def by_variable() -> Mapping[str, Setting]:
    """Give the setting of each environment variable."""
    return {name: one for one in SETTINGS.values() for name in _variables(one)}


def alone(one: Setting) -> dict[str, str]:
    """Give the options of a setting that take no word: each with the one it stands for."""
    found = {flag: word.value for word in one.words for flag in word.flags}
    if one.is_switch:
        for name in (one.name, *one.flags):
            found |= {name: "true", f"no_{name}": "false"}
    return found


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Give what was probably meant by ``word``, if anything known resembles it."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return near[0] if near else None


def _keys(one: Setting) -> list[str]:
    keys = [one.name, one.yaml, *one.keys, *(word.key for word in one.words)]
    return [key for key in keys if key]


def _variables(one: Setting) -> list[str]:
    return [*one.env, *(word.env for word in one.words if word.env)]
