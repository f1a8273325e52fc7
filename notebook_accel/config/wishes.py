"""How a person wants a model to lie across ranks: small frozen values, storable and printable.

A wish knows nothing of torch; ``strategies.registry.build`` turns it into a live engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from notebook_accel.config.contradictions import TRACED
from notebook_accel.config.degrees import check_fills, check_product
from notebook_accel.config.fields import (
    check_count,
    check_kinds,
    check_positive,
    names_of,
    read_words,
)
from notebook_accel.config.placement import Placement
from notebook_accel.config.written import written
from notebook_accel.errors import ConfigError

# In what form DDP sends gradients, and what a PowerSGD hook may be wrapped in.
COMM_HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")
COMM_WRAPPERS = ("no", "fp16", "bf16")

# Which parts of a model FSDP gathers one at a time, and in what form its state is saved.
WRAP_POLICIES = ("auto", "transformer_based_wrap", "size_based_wrap", "no_wrap")
STATE_DICT_TYPES = ("full_state_dict", "sharded_state_dict")
SHARD_DTYPES = ("fp32", "fp16", "bf16")

# How a layer may be divided, where a plan says it by a word.
STYLES = (
    *("colwise", "rowwise", "colwise_rep", "colwise_gather_output", "rowwise_rep"),
    *("embedding_rowwise", "sequence_parallel"),
)

# In what order a pipeline's stages take forward and backward of micro-batches.
SCHEDULES = ("1f1b", "gpipe", "interleaved")
_CLASSES = "transformer_cls_names_to_wrap"
# What FSDP asks for that a stage of a pipeline does not do.
_NOT_INSIDE = ("cpu_offload", "ignored_modules", "param_dtype", "reduce_dtype", "output_dtype")


@dataclass(frozen=True)
class Strategy:
    """What every wish is: a name and plain fields.

    Wishes are values, and have a hash: a field that may hold a dict or a list is no part of it
    (``hash=False``), but of ``==``.
    """

    name: ClassVar[str] = "strategy"

    def __init_subclass__(cls) -> None:
        if "__repr__" not in vars(cls):
            cls.__repr__ = Strategy.__repr__  # type: ignore[method-assign]  # else dataclass's

    def __repr__(self) -> str:
        return written(self)

    def says(self) -> dict[str, Any]:
        """Give settings of the run that this wish decides: "mixed_precision", accumulation."""
        return {}

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse a run that this wish cannot be in, as far as values alone tell.

        It is asked before any rank starts, and again on every rank: what it says is the same for
        all places of a world. A wish that suits all runs leaves it as it is.

        Errors: ConfigError; MissingPackage.
        """


@dataclass(frozen=True)
class SingleDevice(Strategy):
    """One process, one device."""

    name: ClassVar[str] = "single"

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse several ranks, which would not know of each other."""
        if place.size > 1:
            raise ConfigError(
                f"strategy=SingleDevice() in a world of {place.size} ranks",
                "each rank would train its own model on all of the data, unknown to the others",
                "leave strategy out (or write strategy=DDP()), or launch with num_processes=1",
            )


@dataclass(frozen=True)
class DDP(Strategy):
    """A whole copy of the model on every rank, gradients averaged after each backward.

    ``comm_hook`` sends gradients as "fp16", "bf16" or compressed ("power_sgd", with
    ``comm_state_option`` for its state); ``comm_wrapper`` sends what PowerSGD makes as "fp16" or
    "bf16".

    Units: ``bucket_cap_mb`` in MiB of gradients per collective.
    Errors: ConfigError for an unknown hook.
    Source: torch.nn.parallel.DistributedDataParallel, whose arguments these are; Vogels et al.
    2019, "PowerSGD".
    """

    name: ClassVar[str] = "ddp"
    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: float = 25
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    check_reduction: bool = False
    static_graph: bool = False
    comm_hook: str = "no"
    comm_wrapper: str = "no"
    comm_state_option: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_ddp(self)


def check_ddp(one: Any) -> None:
    """Check what DistributedDataParallel is told by the fields of ``one``, and read its words.

    Errors: ConfigError.
    """
    read_words(one, comm_hook=COMM_HOOKS, comm_wrapper=COMM_WRAPPERS)
    owner = type(one).__name__
    check_count(owner, "dim", one.dim, least=0)
    check_positive(owner, "bucket_cap_mb", one.bucket_cap_mb, "MiB of gradients per collective")
    check_kinds(one)


@dataclass(frozen=True)
class FSDP(Strategy):
    """Parameters, gradients and optimizer states in shards: 1/N of them on each of N ranks.

    A part of the model (a block) is whole on a rank only while it computes; its gradients are
    averaged and cut up again. ``auto_wrap_policy`` says what the parts are: "auto" the classes of
    ``_no_split_modules``, else the blocks of the model's lists, else the modules of each
    ``nn.Sequential``, else the model as one part; "transformer_based_wrap" the classes
    ``transformer_cls_names_to_wrap`` (without names as "auto", but an error where there are no
    lists); "size_based_wrap" whatever has ``min_num_params``; "no_wrap"
    the whole model; a function ``policy(module=, recurse=, nonwrapped_numel=)`` as torch has them
    says it of each module. ``reshard_after_forward=False`` keeps parts whole until their backward:
    faster, and more memory. ``replicas`` copies of the sharded model make HSDP: shards among
    neighbors, gradients averaged between the copies; "machines" is a copy on each machine.
    ``cpu_offload`` keeps shards in the memory of the CPU; ``activation_checkpointing`` computes the
    blocks' forward a second time instead of keeping what it made. ``cpu_ram_efficient_loading``:
    only rank 0 has weights, the other ranks' models may be on the meta device. ``ignored_modules``
    (modules, or a pattern of their names) stay whole on every rank; nothing in them may be trained.
    ``param_dtype``, ``reduce_dtype`` and ``output_dtype`` override what the precision says: parts
    compute in its dtype, gradients are averaged in float32.

    Errors: ConfigError for what cannot be.
    Source: Zhao et al. 2023, "PyTorch FSDP"; torch.distributed.fsdp.fully_shard.
    """

    name: ClassVar[str] = "fsdp"
    reshard_after_forward: bool = True
    auto_wrap_policy: Any = field(default="auto", hash=False)
    transformer_cls_names_to_wrap: tuple[str, ...] = ()
    min_num_params: int = 0
    replicas: int | str = 1
    cpu_offload: bool = False
    activation_checkpointing: bool = False
    cpu_ram_efficient_loading: bool = False
    ignored_modules: Any = field(default=None, hash=False)
    state_dict_type: str = "sharded_state_dict"
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    output_dtype: str | None = None

    def __post_init__(self) -> None:
        names = names_of("FSDP", _CLASSES, self.transformer_cls_names_to_wrap)
        object.__setattr__(self, _CLASSES, names)
        if not callable(self.auto_wrap_policy):
            read_words(self, auto_wrap_policy=WRAP_POLICIES)
        read_words(self, state_dict_type=STATE_DICT_TYPES)
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            if getattr(self, name) is not None:
                read_words(self, **{name: SHARD_DTYPES})
        if self.replicas != "machines":
            check_count("FSDP", "replicas", self.replicas)
        check_count("FSDP", "min_num_params", self.min_num_params, least=0)
        check_kinds(self)
        check_modules("FSDP", self.ignored_modules)

    def num_copies(self, place: Placement) -> int:
        """Give how many copies of the sharded model there are in the world of ``place``."""
        if isinstance(self.replicas, int):
            return self.replicas
        return place.size // place.machine_size

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse copies that do not fill the world; one rank shares with nobody."""
        if place.size > 1:
            check_fills(f"FSDP(replicas={self.replicas!r})", self.num_copies(place), place.size)


def check_modules(owner: str, value: Any) -> None:
    """Raise ConfigError unless ``value``, as ``ignored_modules``, can name modules."""
    if value is not None and not isinstance(value, (str, Iterable)):
        raise ConfigError(
            f"{owner}(ignored_modules={value!r:.80})",
            "it is a list of the model's modules, or a regular expression for their names",
            "write ignored_modules=[model.head], or leave it out",
        )


@dataclass(frozen=True)
class TensorParallel(Strategy):
    """Each layer cut up over ``size`` neighboring ranks, which compute one batch together.

    ``plan`` says how: names of modules (``*`` stands for one part of a name: "blocks.*.up") with
    "colwise" (its outputs are divided) or "rowwise" (its inputs are; what follows is whole again),
    "colwise_rep" (divided, then joined), "rowwise_rep" (an embedding by its rows), or a
    ``ParallelStyle`` of torch. Without a plan it is the model's own (``tp_plan``). The groups of
    ranks read different data and share the parameters as ``data`` says.

    Errors: ConfigError for what cannot be.
    Source: Shoeybi et al. 2019, "Megatron-LM"; torch.distributed.tensor.parallel.
    """

    name: ClassVar[str] = "tensor"
    size: int = 2
    plan: Mapping[str, Any] | None = field(default=None, hash=False)
    data: FSDP = field(default_factory=FSDP)

    def __post_init__(self) -> None:
        check_count("TensorParallel", "size", self.size)
        check_kinds(self)
        check_plan("TensorParallel", self.plan)
        if not isinstance(self.data, FSDP):
            raise ConfigError(
                f"TensorParallel(data={self.data!r:.80})",
                "it is how groups of ranks that read different data share the parameters",
                "write data=FSDP(), with replicas=N for N copies, or leave it out",
            )

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse groups of ranks, and copies of them, that do not fill the world."""
        if self.size == 1:  # nothing is divided
            return self.data.check_fit(place, precision)
        copies = self.data.num_copies(place)
        sizes = {"TensorParallel(size={})": self.size, "FSDP(replicas={})": copies}
        return check_product(sizes, place.size)


def check_plan(owner: str, plan: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for a way to divide layers that is no word of ``STYLES``, nor torch's."""
    for pattern, style in ({} if plan is None else plan).items():
        is_torchs = any(kind.__name__ == "ParallelStyle" for kind in type(style).__mro__)
        if not isinstance(pattern, str) or not (is_torchs or style in STYLES):
            raise ConfigError(
                f"{owner}(plan={{{pattern!r}: {style!r:.80}}})",
                f"a plan maps names of modules to how they are divided: {', '.join(STYLES)}",
                "write one of these words, or a ParallelStyle of torch.distributed.tensor.parallel",
            )


@dataclass(frozen=True)
class Pipeline(Strategy):
    """The model in ``stages``, which neighboring ranks run one after the other on one batch.

    A rank runs ``stages_per_rank`` of them (the first rank the first one, and again the first one
    of each further round). A batch is cut into ``num_microbatches`` (as many as stages, if nothing
    is said; fewer where its rows do not divide evenly), so that stages work at the same time.
    ``split`` names the modules where the second stage begins, the third, and so on; without it the
    blocks of the model's list are divided by their numbers of parameters. ``schedule`` is "1f1b" (a
    backward as soon as one can be, with the fewest micro-batches in memory; "interleaved" is its
    name for several stages a rank) or "gpipe" (all forwards, then all backwards). ``inside`` says
    how one stage lies on its ranks: ``DDP()`` in copies that read different data, ``FSDP()`` in
    parts between batches, ``TensorParallel()`` with its layers divided as well. The loop calls
    ``accelerator.forward_backward``. From the first batch on a rank holds its own stages only.

    Errors: ConfigError for what cannot be.
    Source: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream"; Narayanan et al. 2021,
    "Efficient large-scale language model training on GPU clusters"; torch.distributed.pipelining.
    """

    name: ClassVar[str] = "pipeline"
    stages: int = 2
    num_microbatches: int | None = None
    schedule: str = "1f1b"
    split: tuple[str, ...] | None = None
    stages_per_rank: int = 1
    inside: Strategy = field(default_factory=DDP)

    def __post_init__(self) -> None:
        read_words(self, schedule=SCHEDULES)
        if self.split is not None:
            object.__setattr__(self, "split", names_of("Pipeline", "split", self.split))
        check_count("Pipeline", "stages", self.stages)
        check_count("Pipeline", "stages_per_rank", self.stages_per_rank)
        if self.num_microbatches is not None:
            check_count("Pipeline", "num_microbatches", self.num_microbatches)
        if self.split is not None and len(self.split) != self.stages - 1:
            raise ConfigError(
                f"Pipeline(stages={self.stages}) with a split of {len(self.split)} names",
                "the first stage begins with the model, each other one at a module that is named",
                f"name {self.stages - 1}, or leave split out",
            )
        if self.stages % self.stages_per_rank:
            raise ConfigError(
                f"Pipeline(stages={self.stages}, stages_per_rank={self.stages_per_rank})",
                f"every rank runs equally many stages, and {self.stages} are not a multiple of "
                f"{self.stages_per_rank}",
                f"write stages={self.stages_per_rank * 2}, or another multiple",
            )
        if self.schedule == "interleaved" and self.stages_per_rank == 1:
            raise ConfigError(
                "Pipeline(schedule='interleaved') with one stage a rank",
                "what is interleaved are the several stages of one rank",
                f"write Pipeline(stages={self.stages * 2}, stages_per_rank=2), or schedule='1f1b'",
            )
        _check_inside(self.inside)

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse stages, and what shares each, that do not fill the world; and 8 bits."""
        if self.num_ranks == 1:  # nothing is cut
            return self.inside.check_fit(place, precision) if place.size > 1 else None
        if precision == "fp8":
            raise ConfigError(
                "Pipeline() with mixed_precision='fp8'",
                TRACED,
                "write mixed_precision='bf16', or strategy=FSDP()",
            )
        per_rank = f", stages_per_rank={self.stages_per_rank}" * (self.stages_per_rank > 1)
        sizes = {
            f"Pipeline(stages={self.stages}{per_rank})": self.num_ranks,
            "TensorParallel(size={})": 1 if self.tensor is None else self.tensor.size,
        }
        if self.data is not None and self.data.replicas != "machines":
            sizes["FSDP(replicas={})"] = self.data.num_copies(place)
        return check_product(sizes, place.size)

    @property
    def num_ranks(self) -> int:
        """How many ranks one after the other run the stages."""
        return self.stages // self.stages_per_rank

    @property
    def tensor(self) -> TensorParallel | None:
        """How layers of a stage are divided; None, if they are not."""
        divides = isinstance(self.inside, TensorParallel) and self.inside.size > 1
        return self.inside if divides else None  # type: ignore[return-value]

    @property
    def data(self) -> FSDP | None:
        """How the readers of data share a stage's parameters; None, if each has them all."""
        inside = self.inside.data if isinstance(self.inside, TensorParallel) else self.inside
        return inside if isinstance(inside, FSDP) else None


def _check_inside(inside: Any) -> None:
    if not isinstance(inside, (DDP, FSDP, TensorParallel)):
        raise ConfigError(
            f"Pipeline(inside={inside!r})",
            "it says how the ranks of one stage share it",
            "write inside=DDP(), FSDP() or TensorParallel(size=2, plan=...)",
        )
    data = inside.data if isinstance(inside, TensorParallel) else inside
    plain = type(data)()
    names = _NOT_INSIDE if isinstance(data, FSDP) else [one.name for one in fields(data)]
    odd = [name for name in names if getattr(data, name) != getattr(plain, name)]
    if odd:
        raise ConfigError(
            f"Pipeline(inside={type(data).__name__}({odd[0]}={getattr(data, odd[0])!r}))",
            "a stage averages and divides its own parameters, and does not do this",
            f"leave {', '.join(odd)} out, or use {type(data).__name__} without a pipeline",
        )


def refuse_class(strategy: Any) -> None:
    """Raise ConfigError for the class of a wish in place of one."""
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise ConfigError(
            f"strategy={strategy.__name__} is a class",
            "a strategy is a value with its settings",
            f"write strategy={strategy.__name__}()",
        )
