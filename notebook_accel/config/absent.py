"""Names of Accelerate that are not here yet, and what will bring them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notebook_accel.config.settings import SETTINGS
from notebook_accel.errors import NotHere

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

INSIDES = "a face for what lies inside Accelerate's own FSDP and launcher"
SAGEMAKER = "support for Amazon SageMaker"
BIG_MODELS = "big-model inference (models spread over devices, CPU and disk)"
HARDWARE = "support for that hardware"

_COMING = {
    INSIDES: """
        FSDP_AUTO_WRAP_POLICY FSDP_SHARDING_STRATEGY FSDP_MODEL_NAME save_fsdp_model
        load_fsdp_model save_fsdp_optimizer load_fsdp_optimizer merge_fsdp_weights
        enable_fsdp_ram_efficient_loading disable_fsdp_ram_efficient_loading ensure_weights_retied
        fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_load_full_state_dict fsdp2_prepare_model
        fsdp2_switch_optimizer_parameters get_fsdp2_grad_scaler model_has_dtensor
        compile_regions_fsdp2
        commands PrepareForLaunch prepare_simple_launcher_cmd_env prepare_multi_gpu_env
        prepare_deepspeed_cmd_env _filter_args
    """,
    SAGEMAKER: """
        prepare_sagemager_args_inputs SageMakerDistributedType
    """,
    BIG_MODELS: """
        init_empty_weights init_on_device cpu_offload cpu_offload_with_hook disk_offload
        dispatch_model load_checkpoint_and_dispatch load_checkpoint_in_model infer_auto_device_map
        align_module_device attach_layerwise_casting_hooks
        calculate_maximum_sizes check_device_map check_tied_parameters_in_config
        check_tied_parameters_on_same_device compute_module_sizes extract_submodules_state_dict
        get_balanced_memory get_max_layer_size get_max_memory has_offloaded_params
        load_offloaded_weight load_offloaded_weights offload_state_dict offload_weight
        OffloadedWeightsLoader PrefixedDataset retie_parameters save_offload_index
        set_module_tensor_to_device load_and_quantize_model BnbQuantizationConfig
        has_4bit_bnb_layers clean_device_map copy_tensor_to_devices ModelHook SequentialHook
        AlignDevicesHook CpuOffload UserCpuOffloadHook LayerwiseCastingHook add_hook_to_module
        remove_hook_from_module remove_hook_from_submodules attach_execution_device_hook
        attach_align_device_hook attach_align_device_hook_on_blocks
    """,
    HARDWARE: """
        MpDeviceLoaderWrapper prepare_tpu install_xla
    """,
}
WHAT_BRINGS = {name: what for what, names in _COMING.items() for name in names.split()}


def not_here(name: str) -> NotHere:
    """Give the error for a name of Accelerate that comes later."""
    return NotHere(
        f"{name} is not here yet",
        f"it comes with {WHAT_BRINGS.get(name, INSIDES)}, which is not built yet",
        "train with what is here, which needs none of it: one device, data parallelism, FSDP, "
        "DeepSpeed, TensorParallel, Pipeline or SequenceParallel",
    )


# What is read and stored, and changes nothing in this version.
_IDLE = (
    "enable_cpu_affinity",
    "allow_cp_standalone",
    "init_include_buffers",
    "bypass_device_map",
    "enable_rich",
    "main_training_function",
    "same_network",
    "downcast_bf16",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_env",
    "command_file",
    "commands",
    # Of TransformerEngine and MS-AMP: torchao computes in 8 bits here.
    "fp8_use_autocast_during_eval",
    "fp8_margin",
    "fp8_interval",
    "fp8_format",
    "fp8_amax_history_len",
    "fp8_amax_compute_algo",
    "fp8_override_linear_precision",
    "fp8_use_mxfp8_block_scaling",
    "fp8_opt_level",
)
_BROUGHT_BY = {"device": HARDWARE, "compute_environment": SAGEMAKER}


def refuse_unbuilt(config: RunConfig) -> None:
    """Refuse a configuration that asks for what comes later; it can be stored, and not be run.

    Errors: NotHere naming the setting and where it was asked for.
    """
    for name, value in config.given().items():
        if value in SETTINGS[name].coming:
            origin = config.origin(name)
            asked = f"{name}={value!r}"
            if origin.kind != "argument":
                asked += f" (from {origin})"
            raise NotHere(
                f"{asked} asks for what is not here yet",
                f"it comes with {_BROUGHT_BY[name]}, which is not built yet",
                f"choose another {name}, or leave it out",
            )


def idle(config: RunConfig) -> list[str]:
    """Name the settings that were chosen and change nothing in this version."""
    return [
        name
        for name, value in config.given().items()
        if name in _IDLE and value != SETTINGS[name].default
    ]
