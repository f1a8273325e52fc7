"""Models in pieces: FSDP, and ranks laid out along several axes."""

from __future__ import annotations

from notebook_accel.config.catalog.setting import Setting, table

_fsdp = table("fsdp", "fsdp_", "FSDP_", "fsdp_config.")
_axes = table("parallelism", "parallelism_config_", "PARALLELISM_CONFIG_", "parallelism_config.")

_SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
_STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")


def _numbered(words: tuple[str, ...]) -> dict[str, str]:
    """Torch's enums count from 1, and older files hold those numbers."""
    return {str(number): word for number, word in enumerate(words, 1)}


FSDP: tuple[Setting, ...] = (
    _fsdp("version", "int", 1, "FSDP 1, or 2 on DTensors", choices=(1, 2),
          question="Which version of FSDP?"),
    _fsdp(
        "sharding_strategy", "str", "FULL_SHARD", "what FSDP 1 cuts into pieces",
        choices=_SHARDINGS, spellings=_numbered(_SHARDINGS),
        question="What is cut into pieces?", when={"fsdp_version": 1},
    ),
    _fsdp(
        "reshard_after_forward", "bool", True,
        "free gathered parameters after the forward pass: less memory, more traffic",
        spellings={"FULL_SHARD": True, "SHARD_GRAD_OP": False, "NO_RESHARD": False},
        question="Free gathered parameters after the forward pass?", when={"fsdp_version": 2},
    ),
    _fsdp("offload_params", "bool", False, "keep parameters and gradients in CPU memory",
          question="Keep parameters and gradients in CPU memory?"),
    _fsdp(
        "auto_wrap_policy", "str", None,
        "which parts of a model become units; left out: the blocks that are found",
        choices=_WRAPS, spellings=_numbered(_WRAPS),
        question="Which parts of the model become units?",
    ),
    _fsdp(
        "transformer_layer_cls_to_wrap", "str", None,
        "classes of the layers that become units, comma-separated",
        env=("FSDP_TRANSFORMER_CLS_TO_WRAP",),
        question="Which classes of layers, comma-separated? Empty: what the model says",
        when={"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    ),
    _fsdp(
        "min_num_params", "int", 100_000_000, "parameters that make a module a unit", at_least=0,
        question="From how many parameters is a module a unit?",
        when={"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"},
    ),
    _fsdp(
        "backward_prefetch", "str", None, "when FSDP 1 gathers the next unit in backward passes",
        choices=_PREFETCHES, spellings=_numbered(_PREFETCHES),
        keys=("fsdp_config.fsdp_backward_prefetch_policy",),
    ),
    _fsdp(
        "state_dict_type", "str", None, "in what form checkpoints are written",
        choices=_STATE_DICTS, spellings=_numbered(_STATE_DICTS),
        question="In what form are checkpoints written?",
    ),
    _fsdp("forward_prefetch", "bool", False, "gather the next unit in forward passes too"),
    _fsdp("use_orig_params", "bool", True, "let FSDP 1 show the parameters as the model has them"),
    _fsdp("cpu_ram_efficient_loading", "bool", True, "read pretrained weights on one rank only",
          question="Read pretrained weights on one rank only?"),
    _fsdp("sync_module_states", "bool", True, "begin with rank 0's parameters on every rank"),
    _fsdp("activation_checkpointing", "bool", False,
          "compute activations again in backward passes: less memory, more time",
          question="Compute activations again in backward passes, to save memory?"),
    _fsdp("activation_checkpointing_offload", "bool", False,
          "keep checkpointed activations in CPU memory"),
    _fsdp("ignored_modules", "str", None, "modules to leave whole: a regular expression"),
)  # fmt: skip

PARALLELISM: tuple[Setting, ...] = (
    Setting(
        "use_parallelism_config", "parallelism", "bool", False, "lay ranks out along several axes",
        is_switch=True, env=("ACCELERATE_USE_PARALLELISM_CONFIG",),
        question="Lay processes out along several axes (tensor, context, ...)?",
    ),
    _axes("dp_replicate_size", "int", 1, "whole copies of the model", at_least=1,
          question="How many whole copies of the model?"),
    _axes("dp_shard_size", "int", 1, "pieces of each copy", at_least=1,
          question="Into how many pieces is each copy cut?"),
    _axes("tp_size", "int", 1, "ranks that share each layer", at_least=1,
          question="How many ranks share each layer (tensor parallelism)?"),
    _axes("pp_size", "int", 1, "stages that layers are divided into", at_least=1, yaml=""),
    _axes("cp_size", "int", 1, "ranks that share each sequence", at_least=1,
          question="How many ranks share each sequence (context parallelism)?"),
    _axes("cp_backend", "str", "torch", "who shares it", choices=("torch",)),
    _axes("cp_comm_strategy", "str", "allgather", "how keys and values travel",
          choices=("allgather", "alltoall")),
    _axes("sp_size", "int", 1, "ranks that share each sequence by heads", at_least=1),
    _axes("sp_backend", "str", "deepspeed", "who shares it", choices=("deepspeed",)),
    _axes("sp_seq_length", "int", None, "length of each sequence", at_least=1),
    _axes("sp_seq_length_is_variable", "bool", True, "whether lengths change between batches"),
    _axes("sp_attn_implementation", "str", "sdpa", "which attention computes",
          choices=("sdpa", "flash_attention_2", "flash_attention_3"), others=True),
)  # fmt: skip
