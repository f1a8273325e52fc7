"""Megatron's degrees as a wish, and Accelerate's settings of them as a face over the wish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from notebook_accel.config.degrees import check_fills, excluded
from notebook_accel.config.fields import check_count, check_kinds, check_norm, read_words
from notebook_accel.config.filling import fill
from notebook_accel.config.installed import is_installed
from notebook_accel.config.placement import Placement
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.wishes import (
    DDP,
    FSDP,
    Pipeline,
    Strategy,
    TensorParallel,
    check_plan,
)
from notebook_accel.errors import ConfigError, MissingPackage

# Whose divided layers compute.
LAYERS = ("torch", "core")


@dataclass(frozen=True)
class Megatron(Strategy):
    """Layers divided over ``tp_degree`` ranks, ``pp_degree`` stages, and copies of all that.

    ``plan`` says how layers are divided (see TensorParallel; without it the model's own
    ``tp_plan``). ``num_micro_batches`` of a batch take turns in the stages; None is as many as
    stages. ``context_parallel_size`` ranks share each sequence. ``use_distributed_optimizer`` cuts
    gradients and optimizer states into parts, ``use_custom_fsdp`` parameters too.
    ``recompute_activations`` computes blocks a second time instead of keeping what they made. Each
    update's gradients are cut to the norm ``gradient_clipping``; None leaves them as they are.
    ``layers="core"`` is for a model that you have made of megatron-core's divided layers: they
    compute, and its groups are made with the Accelerator.

    Errors: ConfigError for what cannot be.
    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters".
    """

    name: ClassVar[str] = "megatron_lm"
    tp_degree: int = 1
    pp_degree: int = 1
    num_micro_batches: int | None = None
    gradient_clipping: float | None = None
    use_distributed_optimizer: bool = False
    use_custom_fsdp: bool = False
    recompute_activations: bool = False
    context_parallel_size: int = 1
    plan: Mapping[str, Any] | None = field(default=None, hash=False)
    layers: str = "torch"

    def __post_init__(self) -> None:
        read_words(self, layers=LAYERS)
        for name in ("tp_degree", "pp_degree", "context_parallel_size"):
            check_count("Megatron", name, getattr(self, name))
        if self.num_micro_batches is not None:
            check_count("Megatron", "num_micro_batches", self.num_micro_batches)
        if self.gradient_clipping is not None:
            check_norm("Megatron", "gradient_clipping", self.gradient_clipping)
        check_kinds(self)
        check_plan("Megatron", self.plan)
        self._check_core()
        if clash := excluded({"pp": self.pp_degree, "cp": self.context_parallel_size}):
            raise ConfigError(
                f"Megatron(pp_degree={self.pp_degree}, "
                f"context_parallel_size={self.context_parallel_size})",
                clash[2],
                "leave one of them at 1",
            )

    def _check_core(self) -> None:
        """Refuse what goes with torch's engines only."""
        plain = Megatron.__dataclass_fields__
        served = ("tp_degree", "gradient_clipping", "layers", "num_micro_batches")
        odd = [one for one in plain if getattr(self, one) != plain[one].default]
        odd = [one for one in odd if one not in served]
        if self.layers == "core" and odd:
            raise ConfigError(
                f'Megatron(layers="core", {odd[0]}={getattr(self, odd[0])!r})',
                "a model of megatron-core's layers is trained as it is, in copies that read other "
                "data",
                f"leave {odd[0]} out, or layers",
            )

    @property
    def runs_on_core(self) -> bool:
        """Whether megatron-core's own layers compute."""
        return self.layers == "core" and self.tp_degree > 1

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse degrees that do not fill the world, and a package that is missing."""
        served = self.engine(place.size)
        if not self.runs_on_core:
            served.check_fit(place, precision)
        elif not is_installed("megatron"):
            raise MissingPackage(
                'Megatron(layers="core") needs megatron-core, which is not installed',
                "the model is made of its layers",
                "pip install 'notebook-accel[megatron]', or leave layers out: torch's need no "
                "package",
            )

    def engine(self, world_size: int) -> Strategy:
        """Give the strategy that serves these degrees in a world of so many ranks.

        Errors: ConfigError where they do not multiply to it.
        """
        tp, pp, cp = self.tp_degree, self.pp_degree, self.context_parallel_size
        together = tp * pp * cp
        degrees = {"tp_degree": tp, "pp_degree": pp, "context_parallel_size": cp}
        asked = " x ".join(f"{name}={num}" for name, num in degrees.items() if num > 1)
        check_fills(f"Megatron({asked})", together, world_size)
        readers = world_size // together
        shards = self.use_distributed_optimizer or self.use_custom_fsdp
        data: DDP | FSDP | TensorParallel = DDP()
        if shards or tp > 1 or self.recompute_activations:
            data = FSDP(
                reshard_after_forward=self.use_custom_fsdp,
                replicas=1 if shards or cp > 1 else readers,
                activation_checkpointing=self.recompute_activations,
            )
        if tp > 1:
            assert isinstance(data, FSDP)
            data = TensorParallel(tp, self.plan, data)
        if pp > 1:
            return Pipeline(pp, self.num_micro_batches, inside=data)
        return SequenceParallel(cp, data=data) if cp > 1 else data


# What is computed here without Megatron's saving of memory.
_SAVES_NOTHING = ("sequence_parallelism", "use_precision_aware_optimizer")
_RECOMPUTES = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_RECOMPUTES_BY_WORD = ("recompute_granularity", "recompute_method")
# What nobody does here, and what to do in its place.
_INSTEAD = {
    "num_layers_per_virtual_pipeline_stage": "strategy=Pipeline(stages=4, stages_per_rank=2)",
    "pipeline_model_parallel_split_rank": 'strategy=Pipeline(split=("decoder.0",))',
    "decoder_last_pipeline_num_layers": 'strategy=Pipeline(split=("layers.10",))',
    "optimizer_cpu_offload": "strategy=FSDP(cpu_offload=True)",
    "overlap_cpu_optimizer_d2h_h2d": "strategy=FSDP(cpu_offload=True)",
    "no_load_optim": "load_model weights with load_state_dict, and no load_state",
    "no_save_optim": "accelerator.save_model in place of save_state",
    "megatron_dataset_flag": "a DataLoader of torch",
    "return_logits": "what model(inputs) gives, after model.eval()",
}
_MODELS_OWN = [
    "attention_backend",
    "attention_dropout",
    "hidden_dropout",
    "attention_softmax_in_fp32",
    "use_rotary_position_embeddings",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
]
_SCHEDULERS_OWN = [
    "weight_decay_incr_style",
    "start_weight_decay",
    "end_weight_decay",
    "lr_decay_style",
    "lr_decay_iters",
    "lr_decay_samples",
    "lr_warmup_iters",
    "lr_warmup_samples",
    "lr_warmup_fraction",
    "min_lr",
    "no_wd_decay_cond",
    "scale_lr_cond",
    "lr_mult",
]
_LOSSES_OWN = ("eod_mask_loss", "calculate_per_token_loss", "custom_loss_function")
_OF_GROUPS = (
    (_MODELS_OWN, "your model, which is trained as it is"),
    (_SCHEDULERS_OWN, "your optimizer and its torch scheduler"),
    (_LOSSES_OWN, "the loss_fn of accelerator.forward_backward"),
)


@dataclass
class MegatronLMPlugin:
    """How Megatron trains, under Accelerate's names; torch's own engines serve its degrees.

    What is None is what the environment says (``MEGATRON_LM_*``), else Accelerate's default.
    ``sequence_parallelism`` and ``use_precision_aware_optimizer`` change no number, and save no
    memory here. What the loop says itself (``train_iters``, ``eval_interval``, sequence lengths,
    ...) is taken and changes nothing. What a model, scheduler or loss of Megatron's own would do is
    an error that names it, and what does it here. ``layers`` is the wish's, and no field of
    Accelerate's.

    Errors: ConfigError for values that cannot be, and for fields that ask for Megatron's own.
    Source: Megatron, which says what each field does.
    """

    tp_degree: int | None = None
    pp_degree: int | None = None
    num_micro_batches: int | None = None
    gradient_clipping: float | None = None
    sequence_parallelism: bool | None = None
    recompute_activations: bool | None = None
    use_distributed_optimizer: bool | None = None
    pipeline_model_parallel_split_rank: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    is_train_batch_min: bool | None = None
    train_iters: int | None = None
    train_samples: int | None = None
    weight_decay_incr_style: str | None = None
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    lr_decay_style: str | None = None
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    min_lr: float | None = None
    consumed_samples: list[int] | None = None
    no_wd_decay_cond: Any = None
    scale_lr_cond: Any = None
    lr_mult: float | None = None
    megatron_dataset_flag: bool | None = None
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    tensorboard_dir: str | None = None
    set_all_logging_options: bool | None = None
    eval_iters: int | None = None
    eval_interval: int | None = None
    return_logits: bool | None = None
    custom_train_step_class: Any = None
    custom_train_step_kwargs: Any = None
    custom_model_provider_function: Callable[..., Any] | None = None
    custom_prepare_model_function: Callable[..., Any] | None = None
    custom_megatron_datasets_provider_function: Callable[..., Any] | None = None
    custom_get_batch_function: Callable[..., Any] | None = None
    custom_loss_function: Callable[..., Any] | None = None
    other_megatron_args: Any = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    use_custom_fsdp: bool | None = None
    no_load_optim: bool | None = None
    no_save_optim: bool | None = None
    eod_mask_loss: bool | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    optimizer_cpu_offload: bool | None = None
    use_precision_aware_optimizer: bool | None = None
    decoder_last_pipeline_num_layers: int | None = None
    attention_backend: Any = None
    expert_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    attention_softmax_in_fp32: bool | None = None
    calculate_per_token_loss: bool | None = None
    use_rotary_position_embeddings: bool | None = None
    layers: str = "torch"

    def __post_init__(self) -> None:
        check_kinds(self)
        settings = {one.name: f"megatron_lm_{one.name}" for one in fields(self)}
        fill(self, {name: setting for name, setting in settings.items() if setting in SETTINGS})
        for name in _RECOMPUTES_BY_WORD:
            if getattr(self, name) is not None:
                read_words(self, **{name: SETTINGS[settings[name]].choices})
        self._refuse_megatrons_own()
        self.wish()

    def wish(self) -> Strategy:
        """Give the strategy that these settings ask for.

        Errors: ConfigError for values that cannot be.
        """
        recomputes = self.recompute_activations or any(getattr(self, name) for name in _RECOMPUTES)
        num = self.num_micro_batches
        return Megatron(
            tp_degree=_or_one(self.tp_degree),
            pp_degree=_or_one(self.pp_degree),
            num_micro_batches=None if num == 1 else num,  # which is Accelerate's default
            gradient_clipping=self.gradient_clipping or None,
            use_distributed_optimizer=bool(self.use_distributed_optimizer),
            use_custom_fsdp=bool(self.use_custom_fsdp),
            recompute_activations=recomputes,
            context_parallel_size=_or_one(self.context_parallel_size),
            layers=self.layers,
        )

    @property
    def changes_nothing(self) -> list[str]:
        """What was asked for, and saves no memory here."""
        return [name for name in _SAVES_NOTHING if getattr(self, name)]

    def _refuse_megatrons_own(self) -> None:
        odd = [one.name for one in fields(self) if self._asks(one.name) and _instead(one.name)]
        if odd:
            instead = "; ".join(f"{name}: {_instead(name)}" for name in odd)
            raise ConfigError(
                f"MegatronLMPlugin({', '.join(f'{n}={getattr(self, n)!r}' for n in odd)})",
                "that is for models, datasets and steps of Megatron's own, and here your model, "
                "loaders and loop are trained",
                f"leave it out, and use {instead}",
            )

    def _asks(self, name: str) -> bool:
        value = getattr(self, name)
        setting = SETTINGS.get(f"megatron_lm_{name}")
        if name.startswith("expert_") and value == 1:
            return False
        return (
            value is not None and value is not False and (not setting or value != setting.default)
        )


def _or_one(degree: int | None) -> int:
    return 1 if degree is None else degree


def _instead(name: str) -> str:
    """Say what does here what a field of Megatron's asks for; nothing for one that is served."""
    if name.startswith("custom_") or name == "other_megatron_args":
        return "your own loop"
    return _INSTEAD.get(name) or next((what for own, what in _OF_GROUPS if name in own), "")


@dataclass
class TorchTensorParallelPlugin:
    """Layers divided over ``tp_size`` ranks, under Accelerate's older name.

    ``torch_device_mesh`` says the size too, by its axis "tp"; the mesh itself is made here.

    Errors: ConfigError for what cannot be.
    Source: TensorParallel.
    """

    tp_size: int = 1
    torch_device_mesh: Any = None

    def __post_init__(self) -> None:
        mesh = self.torch_device_mesh
        if mesh is not None:
            if "tp" not in (getattr(mesh, "mesh_dim_names", None) or ()):
                raise ConfigError(
                    f"TorchTensorParallelPlugin(torch_device_mesh={mesh!r:.80})",
                    'its axis "tp" says how many ranks divide a layer, and it has none',
                    "write tp_size=2",
                )
            self.tp_size = mesh["tp"].size()
        check_count("TorchTensorParallelPlugin", "tp_size", self.tp_size)

    def wish(self) -> Strategy:
        """Give the strategy that this asks for."""
        return DDP() if self.tp_size == 1 else TensorParallel(size=self.tp_size)
