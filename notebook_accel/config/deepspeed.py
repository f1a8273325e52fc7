"""DeepSpeed as a wish, and Accelerate's settings of it as a face over the wish."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from notebook_accel.config.adoption import adopt
from notebook_accel.config.deepspeed_file import AUTO, HfDeepSpeedConfig
from notebook_accel.config.deepspeed_filled import filled
from notebook_accel.config.fields import check_count, check_kinds, check_norm, read_words
from notebook_accel.config.installed import is_installed
from notebook_accel.config.placement import FAKE, Placement
from notebook_accel.config.resolve import resolve
from notebook_accel.config.wishes import DDP, Strategy
from notebook_accel.errors import ConfigError, MissingPackage

OFFLOADS = ("none", "cpu", "nvme")
STAGES = (1, 2, 3)
# Where DeepSpeed's own configuration has what the wish has.
_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param": "zero_optimization.offload_param.device",
    "offload_param_path": "zero_optimization.offload_param.nvme_path",
    "gradient_clipping": "gradient_clipping",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
# What DeepSpeed knows and its stage 3 does not, and what to write.
_NOT_IN_STAGE_3 = {
    "elastic_checkpoint": "checkpoints here are read by any number of ranks anyway",
    "round_robin_gradients": "it is about the gradients of stage 2",
    "legacy_stage1": "it is about stage 1",
}


@dataclass(frozen=True)
class DeepSpeed(Strategy):
    """ZeRO by DeepSpeed: optimizer states in shards (stage 1), gradients too (2), all (3).

    ``offload_optimizer`` and ``offload_param`` say where these lie: "none" (with the rest), "cpu",
    "nvme" (then ``..._path`` is a folder). ``gradient_clipping`` is the largest norm of each
    update; ``clip_grad_norm_`` in the loop clips too. ``config`` is DeepSpeed's own configuration
    as a dict, or the path of its JSON; a field that is None is what it says, "auto" in it and what
    it leaves out is filled in from the run. In bf16 and fp16 parameters themselves are in these
    numbers, with a copy in float32 that the optimizer trains.

    Errors: ConfigError for what cannot be.
    Source: Rajbhandari et al. 2020, "ZeRO"; Ren et al. 2021, "ZeRO-Offload"; deepspeed.
    """

    name: ClassVar[str] = "deepspeed"
    zero_stage: int | None = None
    offload_optimizer: str | None = None
    offload_optimizer_path: str | os.PathLike[str] | None = None
    offload_param: str | None = None
    offload_param_path: str | os.PathLike[str] | None = None
    gradient_clipping: float | None = None
    gradient_accumulation_steps: int | None = None
    config: Any = field(default=None, hash=False)

    def __post_init__(self) -> None:
        own = HfDeepSpeedConfig({} if self.config is None else self.config, "config")
        object.__setattr__(self, "config", own.config)
        for name in ("offload_optimizer_path", "offload_param_path"):
            if isinstance(path := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(path))
        for name, key in _KEYS.items():
            self._merge(name, key, own.get_value(key))
        object.__setattr__(self, "zero_stage", 2 if self.zero_stage is None else self.zero_stage)
        if self.zero_stage not in STAGES:
            raise ConfigError(
                f"DeepSpeed(zero_stage={self.zero_stage!r})",
                "stage 1 cuts optimizer states up, 2 gradients too, 3 parameters too",
                "write zero_stage=2, or strategy=DDP() for a whole copy on every rank",
            )
        for what in ("optimizer", "param"):
            self._check_offload(what)
        self._check_numbers()
        check_kinds(self)
        if self.zero_stage == 3:
            for key, why in _NOT_IN_STAGE_3.items():
                if own.is_true(f"zero_optimization.{key}"):
                    raise ConfigError(
                        f"zero_optimization.{key} in stage 3",
                        f"DeepSpeed's stage 3 has no such option: {why}",
                        f"take {key} out of the configuration",
                    )

    @property
    def stage(self) -> int:
        """The stage of ZeRO that was chosen."""
        assert self.zero_stage is not None  # filled in when this was made
        return self.zero_stage

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse what DeepSpeed cannot compute in, ranks that are played, a missing package."""
        filled(self, precision, {})
        if place.comm == FAKE:
            raise ConfigError(
                'strategy=DeepSpeed(...) with device="fake"',
                "DeepSpeed really cuts tensors up, and ranks that are only played hold none",
                "validate the layout with strategy=FSDP(), which cuts the same way, or launch with "
                "real devices",
            )
        refuse_without_package("strategy=DeepSpeed(...)", "strategy=FSDP()")

    def says(self) -> dict[str, Any]:
        """Give the number format and the accumulation, where they are said here."""
        own = HfDeepSpeedConfig(self.config)
        said: dict[str, Any] = {}
        if self.gradient_accumulation_steps is not None:
            said["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        formats = [one for one in ("bf16", "fp16") if own.get_value(f"{one}.enabled") is True]
        if len(formats) > 1:
            raise ConfigError(
                "bf16.enabled and fp16.enabled are both true in DeepSpeed's configuration",
                "a parameter has one number format",
                'set one of them to false, or both to "auto"',
            )
        if formats:
            said["mixed_precision"] = formats[0]
        return said

    def _merge(self, field: str, key: str, value: Any) -> None:
        """Take ``value`` of the configuration for what nobody said."""
        given = getattr(self, field)
        if value is None or value == AUTO:
            return
        if given is None:
            object.__setattr__(self, field, value)
        elif given != value:
            raise ConfigError(
                f"DeepSpeed({field}={given!r}), but its configuration has {key}={value!r}",
                "both say it, and one run can only follow one of them",
                f'leave {field} out, or write {key}="auto" in the configuration',
            )

    def _check_offload(self, what: str) -> None:
        field = f"offload_{what}"
        if getattr(self, field) is None:
            return
        read_words(self, **{field: OFFLOADS})
        place = getattr(self, field)
        if place == "nvme" and not getattr(self, f"{field}_path"):
            raise ConfigError(
                f'DeepSpeed({field}="nvme") without a folder',
                "that is where the files of each rank are",
                f'write {field}_path="/local/disk", or {field}="cpu"',
            )
        if what == "param" and place != "none" and self.zero_stage != 3:
            raise ConfigError(
                f"DeepSpeed(offload_param={place!r}, zero_stage={self.zero_stage})",
                "parameters lie in pieces, and can lie elsewhere, in stage 3 only",
                "write zero_stage=3, or leave offload_param out",
            )

    def _check_numbers(self) -> None:
        steps, norm = self.gradient_accumulation_steps, self.gradient_clipping
        if steps is not None:
            check_count("DeepSpeed", "gradient_accumulation_steps", steps)
        if norm not in (None, 0):  # as DeepSpeed writes that it cuts nothing
            check_norm("DeepSpeed", "gradient_clipping", norm)


@dataclass
class DeepSpeedPlugin:
    """How DeepSpeed trains, under Accelerate's names.

    What is None is what the environment says (``ACCELERATE_DEEPSPEED_*``), else what
    ``hf_ds_config`` says (DeepSpeed's own configuration: the path of its JSON, a dict, an object
    with ``config``), else DeepSpeed's default. "auto" in it is filled in from the run.
    ``zero_stage=0`` is DDP. ``is_train_batch_min``, ``zero3_init_flag``, ``zero3_save_16bit_model``
    and ``transformer_moe_cls_names`` are taken and change nothing: batch sizes are the loaders',
    models are built whole and then cut up, saved models are whole in the numbers they were made in.

    Errors: ConfigError for values that cannot be.
    Source: DeepSpeed, which says what each field does.
    """

    hf_ds_config: Any = None
    gradient_accumulation_steps: Any = None
    gradient_clipping: Any = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | os.PathLike[str] | None = None
    offload_param_nvme_path: str | os.PathLike[str] | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool | None = None
    msamp_opt_level: str | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        for name in ("offload_optimizer_device", "offload_param_device"):
            if getattr(self, name) is not None:
                read_words(self, **{name: OFFLOADS})
        found = resolve({})
        given = found.given()
        if self.enable_msamp:
            raise ConfigError(
                "DeepSpeedPlugin(enable_msamp=True)",
                "MS-AMP's optimizers are no part of DeepSpeed any more",
                'leave it out, and write mixed_precision="bf16"',
            )
        if self.hf_ds_config is None:
            self.hf_ds_config = found.deepspeed_config_file
        own = HfDeepSpeedConfig({} if self.hf_ds_config is None else self.hf_ds_config)
        for name, asked in _FIELDS.items():
            # A configuration says all by itself, but for what it leaves open.
            is_open = not own.config or own.is_auto(_KEYS.get(asked, asked))
            if getattr(self, name) is None and name in given and is_open:
                setattr(self, name, given[name])
        self.hf_ds_config = own
        self.selected = True
        self.wish()

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """DeepSpeed's own configuration; what is changed in it before ``prepare`` counts."""
        config: dict[str, Any] = self.hf_ds_config.config
        return config

    def wish(self) -> Strategy:
        """Give the strategy that these settings ask for.

        Errors: ConfigError for values that cannot be.
        """
        own: HfDeepSpeedConfig = self.hf_ds_config
        stage = own.get_value("zero_optimization.stage", self.zero_stage)
        if (self.zero_stage if stage == AUTO else stage) == 0:
            return DDP()
        return DeepSpeed(
            zero_stage=self.zero_stage,
            offload_optimizer=self.offload_optimizer_device,
            offload_optimizer_path=self.offload_optimizer_nvme_path,
            offload_param=self.offload_param_device,
            offload_param_path=self.offload_param_nvme_path,
            gradient_clipping=_unless_auto(self.gradient_clipping),
            gradient_accumulation_steps=_unless_auto(self.gradient_accumulation_steps),
            config=own.config,
        )

    def is_auto(self, ds_key_long: str) -> bool:
        """Tell whether a value of DeepSpeed's own configuration is left to the run."""
        config: HfDeepSpeedConfig = self.hf_ds_config
        return config.is_auto(ds_key_long)

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Give a value of DeepSpeed's own configuration."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def is_zero3_init_enabled(self) -> bool:
        """Tell whether models are built in pieces from the start; here they never are."""
        return False


def refuse_without_package(asked: str, instead: str) -> None:
    """Raise MissingPackage for ``asked`` if DeepSpeed is not installed; ``instead`` needs none."""
    if not is_installed("deepspeed"):
        raise MissingPackage(
            f"{asked} needs deepspeed, which is not installed",
            "ZeRO is done by the real package",
            f"pip install 'notebook-accel[deepspeed]', or write {instead}, which needs none",
        )


# Settings of the plugin that the environment may say, and the wish's names for them.
_FIELDS = {
    "zero_stage": "zero_stage",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "offload_optimizer",
    "offload_param_device": "offload_param",
    "offload_optimizer_nvme_path": "offload_optimizer_path",
    "offload_param_nvme_path": "offload_param_path",
    "zero3_init_flag": "",
    "zero3_save_16bit_model": "",
}


def _unless_auto(value: Any) -> Any:
    return None if value == AUTO else value


class DeepSpeedPlugins:
    """Several plugins by name, of which one counts: first the first, then what ``select`` says.

    Models that are prepared after ``select`` are trained as it says: a student by one, say, and its
    teacher, who only answers, by another.

    Errors: ConfigError for what are no plugins.
    """

    def __init__(self, plugins: Mapping[str, Any]) -> None:
        ours = {name: adopt(one, DeepSpeedPlugin) for name, one in plugins.items()}
        odd = [name for name, one in ours.items() if not isinstance(one, DeepSpeedPlugin)]
        if odd or not ours:
            names = ", ".join(map(repr, list(plugins)[:3])) or "nothing"
            raise ConfigError(
                f"deepspeed_plugin is a dict of {names}",
                "a dict names several plugins; DeepSpeed's own configuration is a part of one",
                "write deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={...}), or "
                '{"student": DeepSpeedPlugin(...), ...}',
            )
        self.plugins: dict[str, DeepSpeedPlugin] = ours
        self.select(next(iter(ours)))

    @property
    def selected(self) -> DeepSpeedPlugin:
        """The plugin that counts."""
        return next(one for one in self.plugins.values() if one.selected)

    def get(self, name: str) -> DeepSpeedPlugin:
        """Give the plugin ``name``.

        Errors: ConfigError for a name that there is not.
        """
        if name not in self.plugins:
            raise ConfigError(
                f"there is no DeepSpeed plugin {name!r}",
                "the Accelerator was given " + ", ".join(map(repr, self.plugins)),
                "name one of these",
            )
        return self.plugins[name]

    def select(self, name: str) -> DeepSpeedPlugin:
        """Let the plugin ``name`` count from now on; gives it.

        Errors: ConfigError for a name that there is not.
        """
        found = self.get(name)
        for one in self.plugins.values():
            one.selected = one is found
        return found

    def wish(self) -> Strategy:
        """Give the strategy that the selected plugin asks for."""
        return self.selected.wish()
