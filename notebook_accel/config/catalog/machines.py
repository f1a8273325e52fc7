"""Where a run takes place: several machines, MPI, TPU pods, Amazon SageMaker."""

from __future__ import annotations

from notebook_accel.config.catalog.setting import Setting, table

_machines = table("machines")
_mpi = table("mpi", yaml="mpirun_config.")
_tpu = table("tpu")
_aws = table("sagemaker")

_SEVERAL = {"num_nodes": "several"}

MACHINES: tuple[Setting, ...] = (
    _machines(
        "num_nodes", "int", 1, "machines that take part", at_least=1,
        yaml="num_machines", flags=("num_machines",), question="How many machines take part?",
    ),
    _machines(
        "node_rank", "int", 0, "which of these machines this one is", at_least=0,
        yaml="machine_rank", flags=("machine_rank",), when=_SEVERAL,
        question="Which of them is this one? The first is 0",
    ),
    _machines(
        "master_addr", "str", None, "address of the first machine, where ranks meet",
        yaml="main_process_ip", flags=("main_process_ip",), when=_SEVERAL,
        question="What is the first machine's address?",
    ),
    _machines(
        "use_port", "int", None, "port of the first machine; 0, or None on one machine: a free one",
        at_least=0, at_most=65535, yaml="main_process_port",
        flags=("main_process_port", "master_port"), when=_SEVERAL,
        question="On which of its ports do ranks meet?",
    ),
    _machines(
        "same_network", "bool", True, "whether all machines are in one network", is_switch=True,
        yaml="same_network",
    ),
    _machines(
        "rdzv_backend", "str", "static", "how machines find each other",
        choices=("static", "c10d", "etcd", "etcd-v2"), others=True, yaml="rdzv_backend",
    ),
    _machines("rdzv_endpoint", "str", "", "where they meet, as HOST:PORT"),
    _machines("rdzv_conf", "str", "", "settings of the rendezvous, as key=value,key=value"),
    _machines("rdzv_id", "str", "none", "a name for the run that its machines share"),
)  # fmt: skip

MPI: tuple[Setting, ...] = (
    _mpi(
        "mpirun_hostfile", "str", None, "file that lists the hosts for mpirun",
        flags=("hostfile",), question="Which file lists the hosts for mpirun?", when=_SEVERAL,
    ),
    _mpi("mpirun_ccl", "int", None, "oneCCL worker threads for each rank", at_least=1),
)  # fmt: skip

TPU: tuple[Setting, ...] = (
    _tpu(
        "downcast_bf16", "bool", False, "let float stand for bfloat16 and double for float32",
        is_switch=True, yaml="downcast_bf16", env=("ACCELERATE_DOWNCAST_BF16",), hardware=("tpu",),
        question="Should float be bfloat16 and double be float32 on the TPU?",
    ),
    _tpu(
        "tpu_use_cluster", "bool", False, "run on all hosts of a pod", is_switch=True,
        yaml="tpu_use_cluster", flags=("tpu_cluster",), hardware=("tpu",),
        question="Do you train on a TPU pod?",
    ),
    _tpu(
        "tpu_name", "str", None, "name of the pod", yaml="tpu_name", hardware=("tpu",),
        when={"tpu_use_cluster": True}, question="What is the pod's name?",
    ),
    _tpu(
        "tpu_zone", "str", None, "zone of the pod", yaml="tpu_zone", hardware=("tpu",),
        when={"tpu_use_cluster": True}, question="In which zone is it?",
    ),
    _tpu(
        "tpu_use_sudo", "bool", False, "run with sudo on the hosts of a pod", is_switch=True,
        yaml="tpu_use_sudo", hardware=("tpu",),
    ),
    _tpu(
        "tpu_vm", "list", None, "hosts of the pod to run on", yaml="tpu_vm", flags=("vm",),
        hardware=("tpu",),
    ),
    _tpu(
        "tpu_env", "list", None, "variables for the hosts of a pod, NAME=value each",
        yaml="tpu_env", flags=("env",), hardware=("tpu",),
    ),
    _tpu(
        "command_file", "str", None, "file with commands to run on the hosts of a pod first",
        yaml="command_file", hardware=("tpu",),
    ),
    _tpu(
        "commands", "list", None, "commands to run on the hosts of a pod first", yaml="commands",
        hardware=("tpu",),
    ),
)  # fmt: skip

SAGEMAKER: tuple[Setting, ...] = (
    _aws(
        "compute_environment", "str", "LOCAL_MACHINE", "where a run takes place",
        choices=("LOCAL_MACHINE", "AMAZON_SAGEMAKER"), coming=("AMAZON_SAGEMAKER",),
        yaml="compute_environment",
    ),
    _aws(
        "use_sagemaker", "bool", False, "set by SageMaker inside its jobs", has_option=False,
        env=("ACCELERATE_USE_SAGEMAKER",),
    ),
    _aws(
        "sagemaker_distributed_type", "str", None, "what SageMaker distributes by",
        choices=("NO", "DATA_PARALLEL", "MODEL_PARALLEL"), has_option=False,
        env=("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",),
    ),
    _aws("ec2_instance_type", "str", None, "kind of machine", yaml="ec2_instance_type"),
    _aws("iam_role_name", "str", None, "role that the job takes", yaml="iam_role_name"),
    _aws("image_uri", "str", None, "container image of the job", yaml="image_uri"),
    _aws("profile", "str", None, "AWS profile", yaml="profile"),
    _aws("region", "str", None, "AWS region", yaml="region"),
    _aws("base_job_name", "str", None, "start of the job's name", yaml="base_job_name"),
    _aws("pytorch_version", "str", None, "torch of the image", yaml="pytorch_version"),
    _aws("transformers_version", "str", None, "transformers of the image",
         yaml="transformers_version"),
    _aws("py_version", "str", None, "Python of the image", yaml="py_version"),
    _aws("sagemaker_inputs_file", "str", None, "file that lists the inputs",
         yaml="sagemaker_inputs_file"),
    _aws("sagemaker_metrics_file", "str", None, "file that lists the metrics",
         yaml="sagemaker_metrics_file"),
    _aws("additional_args", "dict", None, "further arguments of the estimator",
         yaml="additional_args"),
    _aws("aws_access_key_id", "str", None, "key to AWS", secret=True),
    _aws("aws_secret_access_key", "str", None, "secret of that key", secret=True),
)  # fmt: skip
