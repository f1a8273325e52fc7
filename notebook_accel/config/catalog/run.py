"""How one run goes: what it computes on, in what numbers, how its ranks start and end."""

from __future__ import annotations

from notebook_accel.config.catalog.setting import DEFAULT_PRECISION, Setting, Word, table

# What Accelerate knows by a kind of world each, and this version has no engine for.
OTHER_HARDWARE = ("tpu", "xpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron")

_run = table("run")

RUN: tuple[Setting, ...] = (
    _run(
        "device", "str", None, "what to train on: a kind, or the numbers of the GPUs to take",
        choices=("auto", "auto-or-cpu", "cpu", "cuda", "gpu", "mps", "fake", *OTHER_HARDWARE),
        coming=OTHER_HARDWARE, keys=("gpu_ids",), flags=("gpu_ids",),
        words=(
            Word("cpu", flags=("cpu", "use_cpu"), key="use_cpu", env="ACCELERATE_USE_CPU"),
            Word("cuda", flags=("multi_gpu",)),
            Word("tpu", flags=("tpu",)),
        ),
        question="What do you train on?",
    ),
    _run(
        "num_processes", "int", None,
        "ranks over all machines; left out: one per accelerator, or 1",
        at_least=1, yaml="num_processes", question="How many processes, over all machines?",
    ),
    _run(
        "mixed_precision", "str", DEFAULT_PRECISION, "number format of forward and backward passes",
        choices=("no", "fp16", "bf16", "fp8"), yaml="mixed_precision",
        keys=("fp16",), env=("ACCELERATE_MIXED_PRECISION",),
        question="In which number format do forward and backward passes run?",
    ),
    _run(
        "strategy", "str", "auto", "how a model lies across ranks; auto: a copy on each",
        choices=("auto", "ddp", "fsdp", "deepspeed", "megatron_lm"),
        keys=("distributed_type",),
        words=(
            Word("fsdp", flags=("use_fsdp",), env="ACCELERATE_USE_FSDP"),
            Word("deepspeed", flags=("use_deepspeed",), env="ACCELERATE_USE_DEEPSPEED"),
            Word("megatron_lm", flags=("use_megatron_lm",), env="ACCELERATE_USE_MEGATRON_LM"),
        ),
        question="How does the model lie across processes?",
    ),
    _run(
        "gradient_accumulation_steps", "int", 1, "micro-batches that make one optimizer step",
        at_least=1, yaml="deepspeed_config.gradient_accumulation_steps",
        env=("ACCELERATE_GRADIENT_ACCUMULATION_STEPS",),
        question="How many micro-batches make one optimizer step?",
    ),
    _run(
        "start_method", "str", "auto", "how workers are started",
        choices=("auto", "fork", "forkserver", "spawn", "inline"),
    ),
    _run(
        "max_restarts", "int", 0, "how often all ranks start again after a failure", at_least=0,
    ),
    _run(
        "monitor_interval", "float", 0.1, "seconds between two looks at the ranks", above=0,
    ),
    _run("timeout_s", "float", None, "seconds after which the run is ended", above=0),
    _run(
        "on_interrupt", "str", "raise", "what an interrupted launch does with its partial result",
        choices=("raise", "return"),
    ),
    _run(
        "num_cpu_threads_per_process", "int", None,
        "CPU threads of each rank; left out: a fair share",
        at_least=1, env=("OMP_NUM_THREADS",),
    ),
    _run(
        "enable_cpu_affinity", "bool", False, "bind each rank to the cores nearest to its GPU",
        is_switch=True, yaml="enable_cpu_affinity", env=("ACCELERATE_CPU_AFFINITY",),
        hardware=("cuda",),
    ),
    _run(
        "debug", "bool", False, "compare shapes over ranks before each collective", is_switch=True,
        yaml="debug", env=("ACCELERATE_DEBUG_MODE",),
    ),
    _run(
        "log_line_prefix_template", "str", None,
        'what stands before each line of a rank, as "[${rank}] "',
    ),
    _run("tee", "str", None, "which streams of which ranks are also written to files"),
    _run("log_dir", "str", None, "folder for the files of --tee"),
    _run("role", "str", "default", "a name for these workers, as torch elastic takes it"),
    _run(
        "main_training_function", "str", "main", "function of the script that a TPU rank calls",
        yaml="main_training_function", hardware=("tpu",),
    ),
    _run(
        "torch_device", "str", None, 'the one device of a process that is alone, as "cuda:1"',
        env=("ACCELERATE_TORCH_DEVICE",),
    ),
    _run(
        "log_level", "str", None, "level at which get_logger logs",
        env=("ACCELERATE_LOG_LEVEL",),
        choices=("debug", "info", "warning", "error", "critical"), others=True,
    ),
    _run(
        "enable_rich", "bool", False, "let rich draw tracebacks", is_switch=True,
        env=("ACCELERATE_ENABLE_RICH",),
    ),
    _run(
        "init_include_buffers", "bool", False, "make buffers too on the meta device",
        is_switch=True, env=("ACCELERATE_INIT_INCLUDE_BUFFERS",),
    ),
    _run(
        "bypass_device_map", "bool", False, "train models that a device map spread over devices",
        is_switch=True, env=("ACCELERATE_BYPASS_DEVICE_MAP",),
    ),
    _run(
        "allow_cp_standalone", "bool", False, "allow context parallelism without sharding",
        is_switch=True, env=("ACCELERATE_ALLOW_CP_STANDALONE",),
    ),
    _run(
        "debug_rdv_file", "str", None, "file at which ranks of Accelerate's debug_launcher meet",
        has_option=False, env=("ACCELERATE_DEBUG_RDV_FILE",),
    ),
    _run(
        "fork_launched", "bool", False, "set by Accelerate's notebook_launcher in its ranks",
        has_option=False, env=("FORK_LAUNCHED",),
    ),
)  # fmt: skip
