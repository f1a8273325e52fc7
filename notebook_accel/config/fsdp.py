"""Accelerate's settings of FSDP, as a face over the wish ``FSDP``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from notebook_accel.config.fields import check_kinds, choose, names_of
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.schema import check_choice
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.values import check
from notebook_accel.config.wishes import DDP, FSDP, SHARD_DTYPES, Strategy, check_modules
from notebook_accel.errors import ConfigError, NotHere

# Fields of Accelerate's that are settings of the schema under another name.
_SETTING_OF = {
    "fsdp_version": "fsdp_version",
    "cpu_offload": "fsdp_offload_params",
    "transformer_cls_names_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
}
# What a version does not ask: whoever writes all variables writes this one in vain.
_NOT_OF_VERSION = {1: "reshard_after_forward", 2: "sharding_strategy"}
# The strategies of FSDP 1 that free gathered parameters after the forward pass.
RESHARDS = ("FULL_SHARD", "HYBRID_SHARD")
_OWNER = "FullyShardedDataParallelPlugin"
_DTYPES = {
    "torch.float32": "fp32",
    "float32": "fp32",
    "torch.float16": "fp16",
    "float16": "fp16",
    "torch.bfloat16": "bf16",
    "bfloat16": "bf16",
}


@dataclass
class FullyShardedDataParallelPlugin:
    """How FSDP cuts a model up, under Accelerate's names.

    What is None is what the environment says (``FSDP_*``), else Accelerate's default; without any
    ``auto_wrap_policy`` the parts are those that ``FSDP()`` finds. FSDP 2 does the work whatever
    ``fsdp_version`` says: ``sharding_strategy`` and ``reshard_after_forward`` are two ways to ask
    for one thing. ``backward_prefetch``, ``forward_prefetch``, ``limit_all_gathers``,
    ``use_orig_params``, ``sync_module_states``, ``param_init_fn``, ``state_dict_config`` and
    ``optim_state_dict_config`` are taken and change nothing: what they ask for is always so, or has
    no meaning there.

    Errors: ConfigError for values that cannot be; NotHere for what comes later.
    Source: wishes.FSDP, which says what each field does.
    """

    fsdp_version: int | None = None
    sharding_strategy: Any = None
    reshard_after_forward: Any = None
    backward_prefetch: Any = None
    mixed_precision_policy: Any = None
    auto_wrap_policy: Any = None
    cpu_offload: Any = None
    ignored_modules: Any = None
    state_dict_type: Any = None
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = None
    param_init_fn: Callable[..., Any] | None = None
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_offload: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    transformer_cls_names_to_wrap: Any = None
    min_num_params: int | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        found = resolve({})
        if self.fsdp_version is None:
            self.fsdp_version = found.fsdp_version
        check(SETTINGS["fsdp_version"], self.fsdp_version)
        for one in fields(self):
            if one.name == _NOT_OF_VERSION[self.fsdp_version]:
                continue
            name = _SETTING_OF.get(one.name, f"fsdp_{one.name}")
            if getattr(self, one.name) is None and name in SETTINGS and _chosen(found, name):
                setattr(self, one.name, found[name])
        if isinstance(self.transformer_cls_names_to_wrap, str):
            names = self.transformer_cls_names_to_wrap.split(",")
            self.transformer_cls_names_to_wrap = [one.strip() for one in names]
        _word(self.backward_prefetch, "backward_prefetch", "NO_PREFETCH")
        check_modules(_OWNER, self.ignored_modules)
        self.wish()

    def wish(self) -> Strategy:
        """Give the strategy that these settings ask for.

        Errors: ConfigError for values that cannot be; NotHere for what comes later.
        """
        sharding = _word(self.sharding_strategy, "sharding_strategy", "FULL_SHARD")
        if sharding == "NO_SHARD":
            return DDP()
        if self.activation_checkpointing_offload:
            raise NotHere(
                "FSDP's activation_checkpointing_offload asks for what is not here yet",
                "activations are computed again, not kept on the CPU",
                "write activation_checkpointing=True without it",
            )
        reshard = self.reshard_after_forward
        if not isinstance(reshard, bool):
            # The field held a sharding strategy in FSDP 1.
            word = _word(reshard, "sharding_strategy", sharding, "reshard_after_forward")
            reshard = word in RESHARDS
        policy, details = _policy(self.auto_wrap_policy)
        numbers = _numbers(self.mixed_precision_policy)
        names = self.transformer_cls_names_to_wrap
        names = () if names is None else names_of(_OWNER, "transformer_cls_names_to_wrap", names)
        return FSDP(
            reshard_after_forward=reshard,
            auto_wrap_policy=policy,
            transformer_cls_names_to_wrap=details.get("names", names),
            min_num_params=details.get("least", self.min_num_params or 0),
            replicas="machines" if sharding.startswith("HYBRID") else 1,
            cpu_offload=_offloads(self.cpu_offload),
            activation_checkpointing=bool(self.activation_checkpointing),
            cpu_ram_efficient_loading=bool(self.cpu_ram_efficient_loading),
            ignored_modules=self.ignored_modules,
            state_dict_type=self._state_dict_type().lower(),
            **numbers,
        )

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Say in what form checkpoints are written, before the Accelerator is made."""
        self.state_dict_type = state_dict_type or self.state_dict_type
        self.state_dict_type = self._state_dict_type()

    def set_auto_wrap_policy(self, model: Any) -> None:
        """Take note of ``model``: which of its parts are wrapped is found in ``prepare``."""

    def set_mixed_precision(
        self, mixed_precision: Any, buffer_autocast: bool = False, override: bool = False
    ) -> None:
        """Say in which numbers the parts compute, unless it was said before or ``override``."""
        if self.mixed_precision_policy is None or override:
            self.mixed_precision_policy = mixed_precision

    def _state_dict_type(self) -> str:
        default = "FULL_STATE_DICT" if self.fsdp_version == 1 else "SHARDED_STATE_DICT"
        found = _word(self.state_dict_type, "state_dict_type", default)
        if found == "LOCAL_STATE_DICT":
            raise ConfigError(
                "state_dict_type='LOCAL_STATE_DICT'",
                "FSDP 2 keeps tensors that know how they are cut, not each rank's raw memory",
                'write state_dict_type="SHARDED_STATE_DICT"',
            )
        return found


def _chosen(found: RunConfig, name: str) -> bool:
    return name in found.given()


def _offloads(value: Any) -> bool:
    """Read yes or no, or the ``CPUOffload`` of torch's; None is no."""
    found = getattr(value, "offload_params", value)
    if found is None or isinstance(found, bool):
        return bool(found)
    raise ConfigError(
        f"{_OWNER}(cpu_offload={value!r:.80})",
        "it is on or off",
        "write cpu_offload=True, or leave it out",
    )


def _word(value: Any, field: str, default: str, name: str = "") -> str:
    """Read one of a setting's words, given as text, as a number or as an enum of torch's."""
    setting = SETTINGS[f"fsdp_{field}"]
    if value is None:
        return default
    text = str(getattr(value, "name", value)).upper()
    word = str(setting.spellings.get(text, text))
    check_choice(name or field, word, setting.choices)
    return word


def _policy(value: Any) -> tuple[Any, dict[str, Any]]:
    """Read a policy: one of the schema's words, or a function of torch's or of the person's."""
    if value is None:  # nobody said it
        return "auto", {}
    if not callable(value) or hasattr(value, "name"):
        return _word(value, "auto_wrap_policy", "NO_WRAP").lower(), {}
    known = value.func if isinstance(value, functools.partial) else value
    given = value.keywords if isinstance(value, functools.partial) else {}
    name = getattr(known, "__name__", "")
    if name == "transformer_auto_wrap_policy" and "transformer_layer_cls" in given:
        classes: Iterable[type] = given["transformer_layer_cls"]
        return "transformer_based_wrap", {"names": [one.__name__ for one in classes]}
    if name == "size_based_auto_wrap_policy":
        return "size_based_wrap", {"least": given.get("min_num_params", int(1e8))}
    return value, {}


def _numbers(value: Any) -> dict[str, str]:
    """Read dtypes from a word, a mapping, or a policy of torch's."""
    if value is None:
        return {}
    names = ("param_dtype", "reduce_dtype", "output_dtype")
    if isinstance(value, str):
        word = choose(value, "mixed_precision_policy", SHARD_DTYPES)
        return dict.fromkeys(names[:2], word)
    if not isinstance(value, Mapping) and not any(hasattr(value, name) for name in names):
        raise ConfigError(
            f"{_OWNER}(mixed_precision_policy={value!r:.80})",
            "it says in which numbers the parts compute, and their gradients are averaged",
            'write mixed_precision_policy="bf16", or a MixedPrecisionPolicy of torch',
        )
    get = value.get if isinstance(value, Mapping) else functools.partial(getattr, value)
    found = {name: get(name, None) for name in names}
    return {name: _DTYPES.get(str(one), str(one)) for name, one in found.items() if one is not None}
