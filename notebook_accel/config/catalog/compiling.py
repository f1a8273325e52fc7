"""How models compute: compiled by torch.compile, and in 8-bit numbers."""

from __future__ import annotations

from notebook_accel.config.catalog.setting import Setting, table
from notebook_accel.config.kinds import DynamoBackend

_dynamo = table("dynamo", "dynamo_", "ACCELERATE_DYNAMO_", "dynamo_config.")
_fp8 = table("fp8", "fp8_", "ACCELERATE_FP8_", "fp8_config.")

_ON = {"mixed_precision": "fp8"}

DYNAMO: tuple[Setting, ...] = (
    _dynamo(
        "backend", "str", "no", "which backend of torch.compile compiles models; no: none does",
        choices=tuple(one.value.lower() for one in DynamoBackend), others=True,
        keys=("dynamo_backend",), question="Which backend of torch.compile compiles models?",
    ),
    _dynamo("mode", "str", "default", "what compilation tries for",
            choices=("default", "reduce-overhead", "max-autotune"), others=True,
            question="What does compilation try for?"),
    _dynamo("use_fullgraph", "bool", False, "fail where a model does not compile as a whole",
            is_switch=True, question="Fail where a model does not compile as a whole?"),
    _dynamo("use_dynamic", "bool", False, "compile for shapes that change", is_switch=True,
            question="Compile for shapes that change?"),
    _dynamo("use_regional_compilation", "bool", False, "compile repeated blocks one by one",
            is_switch=True, question="Compile repeated blocks one by one?"),
)  # fmt: skip

FP8: tuple[Setting, ...] = (
    _fp8("backend", "str", None, "which library computes in 8 bits",
         choices=("ao", "te", "msamp"), when=_ON, hardware=("cuda",),
         question="Which library computes in 8 bits?"),
    _fp8("use_autocast_during_eval", "bool", False, "compute in 8 bits in evaluation too",
         is_switch=True, hardware=("cuda",)),
    _fp8("margin", "int", 0, "distance of scales from their largest", hardware=("cuda",)),
    _fp8("interval", "int", 1, "steps between new scales", at_least=1, hardware=("cuda",)),
    _fp8("format", "str", "HYBRID", "which 8-bit numbers", choices=("HYBRID", "E4M3", "E5M2"),
         when=_ON, hardware=("cuda",), question="Which 8-bit numbers?"),
    _fp8("amax_history_len", "int", 1024, "steps that a scale looks back", at_least=1,
         hardware=("cuda",)),
    _fp8("amax_compute_algo", "str", "most_recent", "what it takes from them",
         choices=("max", "most_recent"), hardware=("cuda",)),
    _fp8("override_linear_precision", "list", None,
         "yes or no for each of forward, input gradients, weight gradients: in more bits",
         env=("ACCELERATE_FP8_OVERRIDE_FPROP", "ACCELERATE_FP8_OVERRIDE_DGRAD",
              "ACCELERATE_FP8_OVERRIDE_WGRAD"), hardware=("cuda",)),
    _fp8("use_mxfp8_block_scaling", "bool", False, "one scale for each block of 32 numbers",
         hardware=("cuda",)),
    _fp8("opt_level", "str", "O2", "how much MS-AMP keeps in 8 bits", choices=("O1", "O2"),
         hardware=("cuda",)),
    _fp8("enable_fsdp_float8_all_gather", "bool", True, "gather FSDP parameters in 8 bits",
         hardware=("cuda",)),
    _fp8("pad_inner_dim", "bool", True, "pad matrices to a multiple of 16", hardware=("cuda",)),
)  # fmt: skip
