"""Facts about Accelerate's names: the keys of its files, its options, its variables."""

from __future__ import annotations


def _each(prefix: str, names: str) -> set[str]:
    return {prefix + name for name in names.split()}


KEYS = _each(
    "",
    """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank
    num_machines gpu_ids main_process_ip main_process_port rdzv_backend same_network
    main_training_function enable_cpu_affinity downcast_bf16 tpu_name tpu_zone tpu_use_cluster
    tpu_use_sudo command_file commands tpu_vm tpu_env fp16 dynamo_backend
    ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version
    transformers_version py_version sagemaker_inputs_file sagemaker_metrics_file additional_args
    """,
)
BLOCKS = _each(
    "",
    """
    fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config
    dynamo_config
    """,
)
_FSDP = """
    version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy
    transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params
    cpu_ram_efficient_loading sync_module_states activation_checkpointing
    activation_checkpointing_offload
"""
_AXES = """
    dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend
    sp_seq_length sp_seq_length_is_variable sp_attn_implementation
"""
_MEGATRON = """
    tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations
    use_distributed_optimizer gradient_clipping recompute_granularity recompute_method
    recompute_num_layers use_custom_fsdp no_load_optim no_save_optim eod_mask_loss
    overlap_cpu_optimizer_d2h_h2d optimizer_cpu_offload use_precision_aware_optimizer
    decoder_last_pipeline_num_layers attention_backend expert_model_parallel_size
    context_parallel_size expert_tensor_parallel_size attention_dropout hidden_dropout
    attention_softmax_in_fp32 calculate_per_token_loss use_rotary_position_embeddings
"""
_FP8 = """
    backend use_autocast_during_eval margin interval format amax_history_len amax_compute_algo
    override_linear_precision opt_level enable_fsdp_float8_all_gather pad_inner_dim
"""
_DYNAMO = "backend mode use_fullgraph use_dynamic use_regional_compilation"
_DEEPSPEED = """
    deepspeed_config_file zero_stage offload_optimizer_device offload_param_device
    offload_optimizer_nvme_path offload_param_nvme_path gradient_accumulation_steps
    gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher
    deepspeed_moe_layer_cls_names
"""

NESTED_KEYS = (
    _each("fsdp_config.fsdp_", _FSDP)
    | _each("parallelism_config.parallelism_config_", _AXES)
    | _each("megatron_lm_config.megatron_lm_", _MEGATRON)
    | _each("fp8_config.fp8_", _FP8)
    | _each("dynamo_config.dynamo_", _DYNAMO)
    | _each("deepspeed_config.", _DEEPSPEED)
    | _each("mpirun_config.", "mpirun_hostfile mpirun_ccl")
)

# About the call, not about the run: `launch` declares them itself.
COMMANDS_OWN = {"config_file", "quiet", "module", "no_python"}
OPTIONS = (
    _each(
        "",
        """
        config_file quiet module no_python debug cpu multi_gpu tpu mixed_precision num_processes
        num_machines num_cpu_threads_per_process enable_cpu_affinity use_deepspeed use_fsdp
        use_megatron_lm use_parallelism_config gpu_ids same_network machine_rank main_process_ip
        main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts monitor_interval
        tpu_cluster no_tpu_cluster tpu_use_sudo vm env main_training_function downcast_bf16
        aws_access_key_id aws_secret_access_key mpirun_hostfile
        """,
    )
    | _each("", _DEEPSPEED)
    | _each("fsdp_", _FSDP)
    | _each("megatron_lm_", _MEGATRON)
    | _each("fp8_", _FP8)
    | _each("dynamo_", _DYNAMO)
    | _each("parallelism_config_", _AXES)
)

VARIABLES = (
    _each(
        "ACCELERATE_",
        """
        USE_CPU TORCH_DEVICE MIXED_PRECISION GRADIENT_ACCUMULATION_STEPS DEBUG_MODE CPU_AFFINITY
        LOG_LEVEL ENABLE_RICH DOWNCAST_BF16 INIT_INCLUDE_BUFFERS BYPASS_DEVICE_MAP
        ALLOW_CP_STANDALONE DEBUG_RDV_FILE USE_DEEPSPEED USE_FSDP USE_MEGATRON_LM
        USE_PARALLELISM_CONFIG USE_SAGEMAKER SAGEMAKER_DISTRIBUTED_TYPE GRADIENT_CLIPPING
        CONFIG_DS_FIELDS
        """,
    )
    | {"FORK_LAUNCHED", "OMP_NUM_THREADS"}
    | _each("ACCELERATE_DYNAMO_", _DYNAMO.upper())
    | _each(
        "ACCELERATE_FP8_",
        """
        BACKEND MARGIN INTERVAL FORMAT AMAX_HISTORY_LEN AMAX_COMPUTE_ALGO OVERRIDE_FPROP
        OVERRIDE_DGRAD OVERRIDE_WGRAD USE_AUTOCAST_DURING_EVAL USE_MXFP8_BLOCK_SCALING OPT_LEVEL
        PAD_INNER_DIM ENABLE_FSDP_FLOAT8_ALL_GATHER
        """,
    )
    | _each(
        "ACCELERATE_DEEPSPEED_",
        """
        ZERO_STAGE OFFLOAD_OPTIMIZER_DEVICE OFFLOAD_PARAM_DEVICE OFFLOAD_OPTIMIZER_NVME_PATH
        OFFLOAD_PARAM_NVME_PATH ZERO3_INIT ZERO3_SAVE_16BIT_MODEL CONFIG_FILE MOE_LAYER_CLS_NAMES
        """,
    )
    | _each(
        "FSDP_",
        """
        VERSION SHARDING_STRATEGY RESHARD_AFTER_FORWARD OFFLOAD_PARAMS MIN_NUM_PARAMS
        AUTO_WRAP_POLICY TRANSFORMER_CLS_TO_WRAP BACKWARD_PREFETCH STATE_DICT_TYPE FORWARD_PREFETCH
        USE_ORIG_PARAMS CPU_RAM_EFFICIENT_LOADING SYNC_MODULE_STATES ACTIVATION_CHECKPOINTING
        ACTIVATION_CHECKPOINTING_OFFLOAD IGNORED_MODULES
        """,
    )
    | _each("PARALLELISM_CONFIG_", _AXES.upper())
    | _each("MEGATRON_LM_", _MEGATRON.upper())
)
# Who a process is, which launchers tell it: facts for config.placement, not settings.
PLACES = _each(
    "",
    """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK NPROC
    """,
)
