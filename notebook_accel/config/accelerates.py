"""Keys of Accelerate's files that say a thing in another way than our settings do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from notebook_accel.config.booleans import NO
from notebook_accel.config.catalogue.setting import Setting
from notebook_accel.config.sources import Source
from notebook_accel.config.values import check_choice, read, read_switch

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

# A kind of world -> what it says of our settings.
WORLDS: Mapping[str, Mapping[str, str]] = {
    "NO": {},
    "MULTI_CPU": {"device": "cpu"},
    "MULTI_GPU": {"device": "cuda"},
    "FSDP": {"strategy": "fsdp"},
    "DEEPSPEED": {"strategy": "deepspeed"},
    "MEGATRON_LM": {"strategy": "megatron_lm"},
    "XLA": {"device": "tpu"},
    "TPU": {"device": "tpu"},  # what old files call it
    "MULTI_XPU": {"device": "xpu"},
    "MULTI_NPU": {"device": "npu"},
    "MULTI_MLU": {"device": "mlu"},
    "MULTI_SDAA": {"device": "sdaa"},
    "MULTI_MUSA": {"device": "musa"},
    "MULTI_HPU": {"device": "hpu"},
    "MULTI_NEURON": {"device": "neuron"},
}
_NO_WORLD = ("", "NONE", *(word.upper() for word in NO))
# Keys at the top level of DeepSpeed's own files, which none of ours has.
DEEPSPEEDS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "optimizer",
        "scheduler",
        "bf16",
        "steps_per_print",
        "wall_clock_breakdown",
        "activation_checkpointing",
    }
)


def translate(one: Setting, key: str, value: Any, source: Source) -> Iterator[tuple[str, Any]]:
    """Give what the entry says, as settings and their values; nothing if it leaves all open.

    Errors: ConfigError.
    """
    if key == "distributed_type":
        yield from _world(value, source).items()
    elif key == "fp16":
        if read_switch(one, value, source):
            yield one.name, "fp16"
    elif key == "num_processes" and str(value).strip() == "-1":  # "give it at each launch"
        return
    elif word := next((word for word in one.words if word.key == key), None):
        if read_switch(one, value, source):
            yield one.name, word.value
    elif (found := read(one, value, source)) is not None:
        yield one.name, found


def world(config: RunConfig) -> str:
    """Give Accelerate's word for the kind of world that ``config`` asks for."""
    for name, says in WORLDS.items():
        if says.get("strategy") == config["strategy"] != "auto":
            return name
    device = config["device"]
    several = (config["num_processes"] or 1) > 1
    if device in ("cpu", None, "auto", "auto-or-cpu", "mps"):
        return "MULTI_CPU" if several and device == "cpu" else "NO"
    named = {"gpu": "cuda"}.get(device, device) if isinstance(device, str) else "cuda"
    if named == "cuda":
        return "MULTI_GPU" if several else "NO"
    return next(name for name, says in WORLDS.items() if says.get("device") == named)


def gpu_ids(device: Any) -> str:
    """Write which GPUs are taken, as Accelerate's files do."""
    if isinstance(device, (list, tuple)):
        return ",".join(map(str, device))
    return str(device) if isinstance(device, int) else "all"


def _world(value: Any, source: Source) -> Mapping[str, str]:
    word = str(value).strip().upper()
    if value is None or word in _NO_WORLD:
        return {}
    if word not in WORLDS:
        check_choice("distributed_type", value, tuple(WORLDS), source)
    return WORLDS[word]
