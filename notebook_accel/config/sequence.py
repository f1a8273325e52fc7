"""The wish for sequences divided over ranks, and Accelerate's settings that say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.degrees import check_product
from notebook_accel.config.fields import check_count, check_kinds, choose, read_words
from notebook_accel.config.filling import fill
from notebook_accel.config.placement import Placement
from notebook_accel.config.wishes import DDP, FSDP, Strategy, TensorParallel
from notebook_accel.errors import ConfigError

# How attention sees the whole sequence, and where sequences are cut.
EXCHANGES = ("heads", "keys")
CUTS = ("loader", "context")


@dataclass(frozen=True)
class SequenceParallel(Strategy):
    """Each sequence cut up over ``size`` neighboring ranks, which compute it together.

    The loop stays as it is: a prepared loader gives each rank its part of dimension 1 of a batch
    (every tensor that is as long there as the first), and ``F.scaled_dot_product_attention`` inside
    a prepared model sees whole sequences. ``exchange`` says how: "heads" gives each rank all tokens
    of some heads, whose number must divide; "keys" gives it all keys and values, and suits any
    number of heads. ``pad`` lengthens sequences that do not divide: what each entry of a batch is
    filled with, by its key or place ({"input_ids": 0, "labels": -100}). ``cut="context"`` leaves
    batches whole, for ``accelerator.maybe_context_parallel`` to cut. At a model's first call a few
    tokens are computed both ways and compared; ``check=False`` leaves that out. ``length``, where
    it is given, is that of all sequences. ``data`` says how all ranks share the parameters:
    ``DDP()``, ``FSDP()``, ``DeepSpeed()`` or ``TensorParallel()``.

    Errors: ConfigError for what cannot be.
    Source: Jacobs et al. 2023, "DeepSpeed Ulysses" (heads); Dubey et al. 2024, "The Llama 3 herd
    of models", section 3.3.2 (keys).
    """

    name: ClassVar[str] = "sequence"
    size: int = 2
    exchange: str = "heads"
    pad: Mapping[Any, float] | None = field(default=None, hash=False)
    cut: str = "loader"
    check: bool = True
    length: int | None = None
    data: DDP | FSDP | DeepSpeed | TensorParallel = field(default_factory=DDP)

    @property
    def axis(self) -> str:
        """What Accelerate calls the axis of ranks: "cp" where the loop cuts, else "sp"."""
        return "cp" if self.cut == "context" else "sp"

    def says(self) -> dict[str, Any]:
        """Give the settings of the run that ``data`` decides."""
        return self.data.says()

    def __post_init__(self) -> None:
        read_words(self, exchange=EXCHANGES, cut=CUTS)
        check_count("SequenceParallel", "size", self.size)
        if self.length is not None:
            check_count("SequenceParallel", "length", self.length)
        check_kinds(self)
        if not isinstance(self.data, (DDP, FSDP, DeepSpeed, TensorParallel)):
            raise ConfigError(
                f"SequenceParallel(data={self.data!r})",
                "it is how all ranks share the parameters",
                "write data=DDP(), FSDP(), DeepSpeed() or TensorParallel(...)",
            )

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse groups of ranks that do not fill the world, and what ``data`` refuses."""
        data = self.data
        if isinstance(data, DeepSpeed) or self.size == 1:
            data.check_fit(place, precision)
        if self.size == 1:  # nothing is cut
            return
        sizes = {"SequenceParallel(size={})": self.size}
        if isinstance(data, TensorParallel):
            sizes["TensorParallel(size={})"] = data.size
            data = data.data
        if isinstance(data, FSDP) and data.replicas != "machines":
            sizes["FSDP(replicas={})"] = data.num_copies(place)
        check_product(sizes, place.size)


@dataclass
class TorchContextParallelConfig:
    """How keys and values travel under ``ParallelismConfig(cp_size=...)``.

    "allgather" gives each rank all of them; "alltoall" gives it all tokens of some heads. None is
    what the environment says (``PARALLELISM_CONFIG_CP_COMM_STRATEGY``), else "allgather".

    Errors: ConfigError (a ValueError) for another word.
    """

    cp_comm_strategy: str | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        fill(self, {"cp_comm_strategy": "parallelism_config_cp_comm_strategy"})
        self.cp_comm_strategy = choose(
            self.cp_comm_strategy, "cp_comm_strategy", ("allgather", "alltoall")
        )

    @property
    def exchange(self) -> str:
        """The same in our words."""
        return "keys" if self.cp_comm_strategy == "allgather" else "heads"


@dataclass
class DeepSpeedSequenceParallelConfig:
    """What Accelerate asks of ``ParallelismConfig(sp_size=...)``; None asks the environment.

    ``sp_seq_length`` is the length of whole sequences where ``sp_seq_length_is_variable=False``:
    another length is then an error. ``sp_attn_implementation`` is "sdpa", which is what is divided.

    Errors: ConfigError for a length that is missing, and an attention that is not divided.
    """

    sp_seq_length: int | None = None
    sp_seq_length_is_variable: bool | None = None
    sp_attn_implementation: str | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.sp_seq_length is not None:
            check_count("DeepSpeedSequenceParallelConfig", "sp_seq_length", self.sp_seq_length)
        fill(self, {one.name: f"parallelism_config_{one.name}" for one in fields(self)})
        if self.sp_attn_implementation != "sdpa":
            raise ConfigError(
                f"sp_attn_implementation={self.sp_attn_implementation!r}",
                "sequences are divided inside F.scaled_dot_product_attention, which runs flash "
                "kernels where the device has them",
                'write sp_attn_implementation="sdpa", and load the model with '
                'attn_implementation="sdpa"',
            )
        if not self.sp_seq_length_is_variable and self.sp_seq_length is None:
            raise ConfigError(
                "sp_seq_length_is_variable=False without sp_seq_length",
                "one fixed length is promised, and not told",
                "write sp_seq_length=..., or leave both out",
            )

    @property
    def fixed_length(self) -> int | None:
        """The length that all sequences have; None where they differ."""
        return None if self.sp_seq_length_is_variable else self.sp_seq_length
