"""Keys of Accelerate's files that say a thing in another way than our settings do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from notebook_accel.config.booleans import NO
from notebook_accel.config.catalog.setting import Setting
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
    "DATA_PARALLEL": {"sagemaker_distributed_type": "DATA_PARALLEL"},
    "MODEL_PARALLEL": {"sagemaker_distributed_type": "MODEL_PARALLEL"},
}
# What older versions of Accelerate had, and why nothing replaces it.
_IPEX = "Intel's extension of torch has ended: what it did on CPUs, torch itself does now"
DROPPED: Mapping[str, str] = {"ipex_config": _IPEX, "ipex": _IPEX, "use_ipex": _IPEX}
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
    """Give Accelerate's word for the kind of world that ``config`` asks for.

    It has none for "whatever there is": several processes are GPUs then.
    """
    if config["sagemaker_distributed_type"]:
        return str(config["sagemaker_distributed_type"])
    for name, says in WORLDS.items():
        if says.get("strategy") == config["strategy"] != "auto":
            return name
    device, total = config["device"], config["num_processes"]
    if device in ("cpu", "mps", None, "auto", "auto-or-cpu"):
        if device == "mps" or total in (None, 1):
            return "NO"
        return "MULTI_CPU" if device == "cpu" else "MULTI_GPU"
    if device in ("cuda", "gpu") or not isinstance(device, str):
        return "NO" if total == 1 else "MULTI_GPU"
    return next(name for name, says in WORLDS.items() if says.get("device") == device)


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
