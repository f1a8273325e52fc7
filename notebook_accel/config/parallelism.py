"""Accelerate's way to lay ranks out along axes, as a face over the wishes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from notebook_accel.config.adoption import adopt
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.degrees import excluded
from notebook_accel.config.fields import check_count, check_kinds
from notebook_accel.config.filling import fill
from notebook_accel.config.resolve import resolve
from notebook_accel.config.sequence import (
    DeepSpeedSequenceParallelConfig,
    SequenceParallel,
    TorchContextParallelConfig,
)
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, Strategy, TensorParallel
from notebook_accel.errors import ConfigError

_Handler = TypeVar("_Handler")
_Data = DDP | FSDP | DeepSpeed | TensorParallel
_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size", "pp_size")
_AXES = ("dp_replicate", "dp_shard", "pp", "cp", "sp", "tp")  # the outermost first


@dataclass
class TorchTensorParallelConfig:
    """What Accelerate asks of tensor parallelism; ``enable_async_tp`` changes nothing."""

    enable_async_tp: bool = False

    def __post_init__(self) -> None:
        check_kinds(self)


@dataclass
class ParallelismConfig:
    """Ranks along axes: copies of the model, shards of each copy, divided layers and sequences.

    Sizes that are None are what the environment says (``PARALLELISM_CONFIG_*``), else 1; their
    product must be the number of ranks. ``sp_size`` ranks share sequences that a prepared loader
    cuts; ``cp_size`` ranks those that ``accelerator.maybe_context_parallel`` cuts in the loop. Both
    run on torch's own collectives whatever the backend is called; ``cp_handler`` and ``sp_handler``
    say how. ``pp_size`` ranks run one stage each: the loop calls ``accelerator.forward_backward``.

    Errors: ConfigError for what cannot be.
    """

    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None
    cp_backend: str | None = None
    sp_size: int | None = None
    sp_backend: str | None = None
    tp_handler: Any = None
    cp_handler: Any = None
    sp_handler: Any = None
    pp_size: int | None = None

    def __post_init__(self) -> None:
        found = resolve({})
        for name in _SIZES:
            size = getattr(self, name)
            size = found[f"parallelism_config_{name}"] if size is None else size
            check_count("ParallelismConfig", name, size)
            setattr(self, name, size)
        check_kinds(self)
        fill(self, {name: f"parallelism_config_{name}" for name in ("cp_backend", "sp_backend")})
        if clash := excluded({axis: self._size(axis) for axis in _AXES}):
            one, other, why = clash
            raise ConfigError(
                f"ParallelismConfig({one}_size={self._size(one)}, "
                f"{other}_size={self._size(other)})",
                why,
                "leave one of them at 1",
            )
        for name, known in (("cp_backend", "torch"), ("sp_backend", "deepspeed")):
            if getattr(self, name) != known:
                raise ConfigError(
                    f"ParallelismConfig({name}={getattr(self, name)!r})",
                    f"Accelerate knows {known!r} only; what runs here is the same for all",
                    f"leave {name} out",
                )
        self.tp_handler = _adopted(self.tp_handler, TorchTensorParallelConfig, "tp_handler")
        self.cp_handler = _adopted(self.cp_handler, TorchContextParallelConfig, "cp_handler")
        self.sp_handler = _adopted(self.sp_handler, DeepSpeedSequenceParallelConfig, "sp_handler")

    def wish(self, world_size: int, sharded: FSDP | DeepSpeed | None = None) -> Strategy:
        """Give the strategy that these sizes ask for; ``sharded`` says how copies are sharded.

        Errors: ConfigError where the sizes do not multiply to the world.
        """
        if self.total_size != world_size:
            product = " x ".join(f"{name}={size}" for name, size in self._sizes().items())
            raise ConfigError(
                f"ParallelismConfig({product or 'all sizes 1'}) in a world of {world_size} ranks",
                f"the sizes multiply to {self.total_size}; every rank needs one place",
                f"launch {self.total_size} processes, or change a size",
            )
        if isinstance(sharded, DeepSpeed):
            return self._beside(sharded)
        data = self._data(sharded)
        if self.pp_enabled:
            return Pipeline(self._size("pp"), inside=data)
        return self._sequences(data)

    def _sequences(self, data: _Data) -> Strategy:
        """Divide sequences over ranks that share parameters as ``data`` has it."""
        if self.cp_enabled:
            how = self.cp_handler.exchange
            return SequenceParallel(self._size("cp"), how, cut="context", data=data)
        if self.sp_enabled:
            length = self.sp_handler.fixed_length
            return SequenceParallel(self._size("sp"), length=length, data=data)
        return data

    def _beside(self, deepspeed: DeepSpeed) -> Strategy:
        """Divide sequences under DeepSpeed, which shards over all ranks."""
        others = [axis for axis in ("tp", "pp") if self._size(axis) > 1]
        if others:
            raise ConfigError(
                f"ParallelismConfig({others[0]}_size={self._size(others[0])}) under DeepSpeed",
                "its ZeRO shards models whose layers are whole",
                f"leave {others[0]}_size at 1, or shard by fsdp_plugin",
            )
        return self._sequences(deepspeed)

    def _data(self, fsdp: FSDP | None) -> DDP | FSDP | TensorParallel:
        """Say how parameters are shared; ranks that share a sequence shard them too."""
        if not self.tp_enabled and not self.dp_shard_enabled and fsdp is None:
            return DDP()
        data = replace(fsdp or FSDP(), replicas=self.dp_replicate_size or 1)
        if self.tp_enabled:
            return TensorParallel(size=self._size("tp"), data=data)
        return data

    @property
    def total_size(self) -> int:
        """How many ranks these are."""
        return math.prod(self._size(axis) for axis in _AXES)

    @property
    def data_parallel_size(self) -> int:
        """How many ranks read different data."""
        return self._size("dp_replicate") * self._size("dp_shard")

    @property
    def non_data_parallel_size(self) -> int:
        """How many ranks work on the same data together."""
        return self.total_size // self.data_parallel_size

    @property
    def active_mesh_dims(self) -> list[str]:
        """The axes with several ranks, the outermost first."""
        return [axis for axis in _AXES if self._size(axis) > 1]

    @property
    def dp_dim_names(self) -> list[str]:
        """The active axes along which data differ."""
        return [axis for axis in self.active_mesh_dims if axis.startswith("dp_")]

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The active axes along which data are the same."""
        return [axis for axis in self.active_mesh_dims if not axis.startswith("dp_")]

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The active axes that FSDP averages gradients over."""
        wanted = ("dp_replicate", "dp_shard", "cp", "sp")
        return [axis for axis in self.active_mesh_dims if axis in wanted]

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether there are several copies of the model."""
        return self._size("dp_replicate") > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether copies are sharded."""
        return self._size("dp_shard") > 1

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are divided."""
        return self._size("tp") > 1

    @property
    def pp_enabled(self) -> bool:
        """Whether the model runs in stages."""
        return self._size("pp") > 1

    @property
    def cp_enabled(self) -> bool:
        """Whether sequences are divided."""
        return self._size("cp") > 1

    @property
    def sp_enabled(self) -> bool:
        """Whether sequences are divided by heads."""
        return self._size("sp") > 1

    def to_json(self) -> dict[str, Any]:
        """Give the sizes and backends as plain data."""
        return {name: getattr(self, name) for name in (*_SIZES, "cp_backend", "sp_backend")}

    def _size(self, axis: str) -> int:
        size: int = getattr(self, f"{axis}_size")
        return size

    def _sizes(self) -> dict[str, int]:
        return {f"{axis}_size": self._size(axis) for axis in self.active_mesh_dims}


def _adopted(handler: Any, kind: type[_Handler], name: str) -> _Handler:
    """Take a handler of ours, or Accelerate's own as ours; None is what the environment says."""
    ours = kind() if handler is None else adopt(handler, kind)
    if isinstance(ours, kind):
        return ours
    raise ConfigError(
        f"ParallelismConfig({name}={handler!r})",
        "it holds settings of the axis under Accelerate's names",
        f"write {name}={kind.__name__}(...), or leave it out",
    )
