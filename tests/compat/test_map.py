"""Accelerate's map of ``utils``, walked name by name: each is here, or says what will bring it."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch
from torch import nn

import notebook_accel
from notebook_accel import Accelerator, DistributedDataParallelKwargs, ProfileKwargs
from notebook_accel.config.absent import WHAT_BRINGS
from notebook_accel.errors import MissingPackage, NotHere
from tests.support.ranks import run_ranks

# Sections 1.4 to 1.12 of the map, without what command line, sharding and big models bring.
NAMES = """
    DistributedType PrecisionType RNGType LoggerType DynamoBackend FP8BackendType CustomDtype
    ComputeEnvironment DDPCommunicationHookType DataLoaderConfiguration ProjectConfiguration
    GradientAccumulationPlugin TorchDynamoPlugin ProfileKwargs KwargsHandler AutocastKwargs
    DistributedDataParallelKwargs GradScalerKwargs InitProcessGroupKwargs gather gather_object
    broadcast broadcast_object_list reduce pad_across_processes pad_input_tensors concatenate
    slice_tensors send_to_device recursively_apply honor_type is_namedtuple is_torch_tensor
    is_tensor_information listify find_batch_size ignorant_find_batch_size find_device
    get_data_structure initialize_tensors convert_to_fp32 convert_outputs_to_fp32
    DistributedOperationException CannotPadNestedTensorWarning find_executable_batch_size
    release_memory clear_device_cache extract_model_from_parallel compile_regions
    has_compiled_regions is_compiled_module get_model_tp_size get_module_children_bottom_up
    clean_state_dict_for_safetensors save load get_grad_scaler get_mixed_precision_context_manager
    str_to_bool parse_flag_from_env parse_choice_from_env get_int_from_env patch_environment
    clear_environment purge_accelerate_environment convert_dict_to_env_variables
    are_libraries_initialized get_current_device_type get_gpu_info check_cuda_p2p_ib_support
    check_cuda_fp8_capability get_cpu_distributed_information set_numa_affinity
    override_numa_affinity set_seed synchronize_rng_state synchronize_rng_states tqdm
    wait_for_everyone is_port_in_use convert_bytes merge_dicts recursive_getattr get_pretty_name
    check_os_kernel compare_versions is_torch_version deepspeed_required torchao_required
    MODEL_NAME SAFE_MODEL_NAME WEIGHTS_NAME SAFE_WEIGHTS_NAME WEIGHTS_INDEX_NAME
    SAFE_WEIGHTS_INDEX_NAME WEIGHTS_PATTERN_NAME SAFE_WEIGHTS_PATTERN_NAME OPTIMIZER_NAME
    SCHEDULER_NAME SAMPLER_NAME SCALER_NAME RNG_STATE_NAME PROFILE_PATTERN_NAME
    convert_file_size_to_int dtype_byte_size find_tied_parameters id_tensor_storage is_peft_model
    load_state_dict named_module_tensors
    AORecipeKwargs TERecipeKwargs MSAMPRecipeKwargs FP8RecipeKwargs convert_model_to_fp8_ao
    has_ao_layers filter_first_and_last_linear_layers has_transformer_engine_layers convert_model
    apply_fp8_autowrap contextual_fp8_autocast
"""
AVAILABLE = """
    4bit_bnb 8bit_bnb aim amdsmi bf16 bitsandbytes_multi_backend bnb boto3 clearml comet_ml cuda
    datasets deepspeed dvclive fp16 fp8 habana_gaudi1 hpu import_timer lomo matplotlib megatron_lm
    mlflow mlu mps msamp musa neuron npu pandas peft pippy pynvml pytest rich rocm sagemaker
    schedulefree sdaa swanlab tensorboard timm torch_xla torchao torchdata
    torchdata_stateful_dataloader torchvision trackio transformer_engine transformer_engine_mxfp8
    transformers triton wandb weights_only xccl xpu
"""
TRACKING = """
    GeneralTracker register_tracker_class filter_trackers get_available_trackers
    LOGGER_TYPE_TO_CLASS on_main_process TensorBoardTracker WandBTracker TrackioTracker
    CometMLTracker AimTracker MLflowTracker ClearMLTracker DVCLiveTracker SwanLabTracker
"""
TOP = """
    Accelerator PartialState notebook_launcher debug_launcher skip_first_batches
    find_executable_batch_size synchronize_rng_states is_rich_available AutocastKwargs
    DataLoaderConfiguration DDPCommunicationHookType DistributedDataParallelKwargs DistributedType
    GradScalerKwargs InitProcessGroupKwargs ProfileKwargs
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [("utils", NAMES), ("tracking", TRACKING), ("", TOP)],
)
def test_every_name_of_the_core_is_here(module: str, names: str) -> None:
    here = getattr(notebook_accel, module) if module else notebook_accel
    assert [name for name in names.split() if not hasattr(here, name)] == []


@pytest.mark.parametrize("subject", AVAILABLE.split())
def test_everything_that_may_be_available_can_be_asked_for(subject: str) -> None:
    assert getattr(notebook_accel.utils, f"is_{subject}_available")() in (True, False)


@pytest.mark.parametrize("name", sorted(WHAT_BRINGS))
def test_what_is_not_here_says_what_brings_it(name: str) -> None:
    with pytest.raises(NotHere, match=f"{name} is not here yet"):
        getattr(notebook_accel.utils, name)


def test_a_profiler_is_built_of_its_settings() -> None:
    with ProfileKwargs(activities=["cpu"], record_shapes=True).build() as profiler:
        torch.ones(3).sum()
    assert any(one.key == "aten::sum" for one in profiler.key_averages())


def test_a_hook_is_registered_on_a_model_of_ones_own() -> None:
    def body() -> list[float]:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from notebook_accel import DistributedDataParallelKwargs, PartialState

        rank = PartialState(cpu=True).process_index
        model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        DistributedDataParallelKwargs(comm_hook="bf16").register_comm_hook(model)
        model(torch.full((1, 1), 1.0 + rank / 512)).sum().backward()  # no bf16 number for rank 1
        return model.module.weight.grad.flatten().tolist()

    assert run_ranks(body, 2) == [[1.0], [1.0]]
    DistributedDataParallelKwargs().register_comm_hook(nn.Linear(1, 1))  # "no": nothing to do


def test_precision_outside_of_an_accelerator_is_that_of_the_newest() -> None:
    from notebook_accel.utils import get_grad_scaler, get_mixed_precision_context_manager

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with get_mixed_precision_context_manager(native_amp=True):
        assert layer(x).dtype == torch.bfloat16
    with get_mixed_precision_context_manager():
        assert layer(x).dtype == torch.float32
    assert accelerator.mixed_precision == "bf16"
    scaler = get_grad_scaler(init_scale=8.0)
    assert isinstance(scaler, torch.amp.GradScaler) and scaler.get_scale() == 8.0


def test_variables_become_lines_of_a_file() -> None:
    from notebook_accel.utils import convert_dict_to_env_variables

    with pytest.warns(UserWarning, match="BAD is left out") as said:
        lines = convert_dict_to_env_variables({"A": "1", "BAD": "x; rm", "B": 2})
    assert lines == ["A=1\n", "B=2\n"] and len(said) == 1


def test_a_cpu_rank_finds_its_place_in_the_words_of_mpirun(monkeypatch: Any) -> None:
    from notebook_accel.utils import get_cpu_distributed_information

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = get_cpu_distributed_information()
    assert (alone.rank, alone.world_size, alone.local_rank, alone.local_world_size) == (0, 1, 0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    found = get_cpu_distributed_information()
    assert (found.rank, found.world_size, found.local_rank) == (3, 4, 1)


def test_an_old_linux_is_warned_of(monkeypatch: Any, recwarn: Any) -> None:
    from notebook_accel.utils import check_os_kernel

    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for release in ("6.18.44-x", "5.5.0"):
        monkeypatch.setattr(platform, "release", lambda release=release: release)
        check_os_kernel()
    assert not recwarn
    monkeypatch.setattr(platform, "release", lambda: "5.4.0-generic")
    with pytest.warns(UserWarning, match="This is Linux 5.4.0-generic; older than 5.5"):
        check_os_kernel()


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without GPUs answers")
def test_a_machine_without_gpus_has_none() -> None:
    from notebook_accel import utils

    utils.set_numa_affinity(0)
    assert utils.get_gpu_info() == ([], 0)
    assert utils.check_cuda_p2p_ib_support() and not utils.check_cuda_fp8_capability()


def test_what_needs_a_package_says_which() -> None:
    from notebook_accel.utils import deepspeed_required, torchao_required

    for package, required in (("deepspeed", deepspeed_required), ("torchao", torchao_required)):

        @required
        def quantize() -> int:
            return 5

        assert quantize.__name__ == "quantize"
        if getattr(notebook_accel.utils, f"is_{package}_available")():
            assert quantize() == 5
            continue
        with pytest.raises(MissingPackage) as error:
            quantize()
        assert error.value.what == f"quantize needs {package}, which is not installed"
        assert error.value.why and error.value.fix == f"pip install {package}"


def test_a_nested_tensor_is_not_padded() -> None:
    from notebook_accel.utils import CannotPadNestedTensorWarning, pad_across_processes

    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    with pytest.warns(CannotPadNestedTensorWarning, match="it has no one length"):
        assert pad_across_processes(nested) is nested


def test_over_how_many_ranks_a_model_is_cut() -> None:
    model = nn.Linear(1, 1)
    assert notebook_accel.utils.get_model_tp_size(model) == 1
    model.tp_size = 4
    assert notebook_accel.utils.get_model_tp_size(nn.DataParallel(model)) == 4


def test_a_state_dict_is_read_onto_devices(tmp_path: Any) -> None:
    from notebook_accel.utils import clean_state_dict_for_safetensors, load_state_dict

    one = torch.ones(2)
    torch.save({"a.x": one, "ab": one.clone(), "a.b.c": one.clone()}, tmp_path / "w.bin")
    read = load_state_dict(tmp_path / "w.bin", device_map={"": "cpu", "a": "meta", "a.b": "disk"})
    where = {name: tensor.device.type for name, tensor in read.items()}
    assert where == {"a.x": "meta", "ab": "cpu", "a.b.c": "cpu"}
    assert list(clean_state_dict_for_safetensors(state_dict={"a": one, "b": one})) == ["a"]


def test_a_registered_object_has_a_file_of_its_own(tmp_path: Any) -> None:
    from notebook_accel.checkpointing import load_custom_state, save_custom_state

    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=1.0), 3)
    scheduler.last_epoch = 7
    save_custom_state(scheduler, tmp_path, 2)
    scheduler.last_epoch = 0
    load_custom_state(scheduler, tmp_path, 2)
    assert scheduler.last_epoch == 7
    assert [one.name for one in tmp_path.iterdir()] == ["custom_checkpoint_2.pkl"]


def test_a_raised_alarm_is_a_one() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.flag_tensor is None
    accelerator.set_trigger()
    assert accelerator.flag_tensor is not None and accelerator.flag_tensor.item() == 1
    assert accelerator.check_trigger() and accelerator.flag_tensor is None
