"""Every name that a script may import from where Accelerate has it, and what absent names say."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import notebook_accel
from notebook_accel import Accelerator
from notebook_accel.compat import utils as utils_by_room
from notebook_accel.config.absent import WHAT_BRINGS
from notebook_accel.errors import ConfigError, NotHere

IMPORTS = {
    "accelerator": "Accelerator",
    "state": "PartialState AcceleratorState GradientState DistributedType",
    "optimizer": "AcceleratedOptimizer",
    "scheduler": "AcceleratedScheduler",
    "logging": "get_logger MultiProcessAdapter",
    "inference": "prepare_pippy",
    "local_sgd": "LocalSGD",
    "launchers": "notebook_launcher debug_launcher",
    "memory_utils": "find_executable_batch_size release_memory",
    "tracking": "GeneralTracker TensorBoardTracker WandBTracker filter_trackers on_main_process",
    "checkpointing": "save_custom_state load_custom_state",
    "data_loader": "DataLoaderShard DataLoaderDispatcher DataLoaderAdapter DataLoaderStateMixin "
    "BatchSamplerShard IterableDatasetShard SeedableRandomSampler SkipBatchSampler "
    "SkipDataLoader get_sampler prepare_data_loader skip_first_batches",
    "test_utils": "RegressionDataset RegressionModel",
    "test_utils.training": "RegressionDataset RegressionModel",
    "utils": "ParallelismConfig gather_object set_seed",
    "utils.constants": "MODEL_NAME SAFE_WEIGHTS_NAME OPTIMIZER_NAME RNG_STATE_NAME SCALER_NAME",
    "utils.dataclasses": "DistributedType ProjectConfiguration DistributedDataParallelKwargs "
    "DataLoaderConfiguration GradientAccumulationPlugin TorchDynamoPlugin ProfileKwargs",
    "utils.environment": "str_to_bool parse_flag_from_env patch_environment",
    "utils.imports": "is_wandb_available is_bf16_available is_cuda_available is_xpu_available",
    "utils.memory": "find_executable_batch_size release_memory clear_device_cache",
    "utils.operations": "gather reduce broadcast send_to_device DistributedOperationException",
    "utils.other": "extract_model_from_parallel save wait_for_everyone is_compiled_module",
    "utils.random": "set_seed synchronize_rng_states synchronize_rng_state",
    "utils.tqdm": "tqdm",
    "utils.versions": "is_torch_version compare_versions",
}


@pytest.mark.parametrize("module", IMPORTS)
def test_names_lie_where_accelerate_has_them(module: str) -> None:
    here = importlib.import_module(f"notebook_accel.{module}")
    for name in IMPORTS[module].split():
        assert getattr(here, name) is not None
        if module.startswith("utils."):
            assert getattr(notebook_accel.utils, name) is getattr(here, name), name


def test_the_package_shows_its_faces_without_an_import() -> None:
    code = (
        "import notebook_accel as na, sys; assert 'torch' not in sys.modules;"
        "na.utils.operations.gather; na.state.PartialState; na.utils.set_seed;"
        "from notebook_accel.utils.tqdm import tqdm; from notebook_accel.utils import tqdm as bar;"
        "assert bar is tqdm"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


def test_a_face_reached_by_its_room_offers_the_same_objects() -> None:
    from notebook_accel import test_utils
    from notebook_accel.compat import test_utils as by_room
    from notebook_accel.test_utils import training

    assert utils_by_room.gather is notebook_accel.utils.gather
    assert test_utils.RegressionModel is training.RegressionModel is by_room.RegressionModel


@pytest.mark.parametrize(
    "statement",
    [
        "from notebook_accel import init_empty_weights",
        "from notebook_accel.big_modeling import dispatch_model",
        "from notebook_accel.hooks import add_hook_to_module",
        "from notebook_accel.utils import PrepareForLaunch",
    ],
)
def test_a_name_that_comes_later_says_what_will_bring_it(statement: str) -> None:
    name = statement.split()[-1]
    with pytest.raises(ImportError) as error:
        exec(statement)
    assert isinstance(error.value, NotHere)
    assert f"{name} is not here yet" in error.value.what
    assert WHAT_BRINGS[name] in error.value.why
    assert "data parallelism" in error.value.fix


def test_names_that_nobody_knows_are_the_usual_errors() -> None:
    assert not hasattr(notebook_accel.utils, "no_such_name")
    assert not hasattr(notebook_accel.state, "no_such_name")
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = notebook_accel.state.nonsense


def test_nothing_that_is_announced_for_later_is_here_already() -> None:
    offered = set(dir(notebook_accel.utils)) | set(notebook_accel.__all__)
    assert sorted(offered & set(WHAT_BRINGS)) == []


MEMBERS = """
    device distributed_type num_processes process_index local_process_index is_main_process
    is_local_main_process is_last_process use_distributed multi_device mixed_precision fp8_backend
    sync_gradients gradient_accumulation_steps optimizer_step_was_skipped project_dir logging_dir
    save_iteration split_batches dispatch_batches even_batches use_seedable_sampler non_blocking
    use_stateful_dataloader deepspeed_plugin parallelism_config torch_device_mesh is_fsdp2
    is_composable_parallelism_enabled should_save_model tensor_parallel_rank data_parallel_rank
    data_parallel_shard_rank state gradient_state scaler native_amp step trackers log_with
    flag_tensor project_configuration dataloader_config rng_types device_placement _models
    _optimizers _schedulers _dataloaders _custom_objects prepare prepare_model prepare_optimizer
    prepare_scheduler prepare_data_loader backward accumulate no_sync trigger_sync_in_backward
    join_uneven_inputs clip_grad_norm_ clip_grad_value_ unscale_gradients autocast gather
    gather_for_metrics reduce pad_across_processes unwrap_model get_state_dict save save_model
    save_state load_state register_for_checkpointing register_save_state_pre_hook
    register_load_state_pre_hook skip_first_batches split_between_processes main_process_first
    local_main_process_first on_main_process on_local_main_process on_last_process on_process
    on_local_process print wait_for_everyone set_trigger check_trigger init_trackers get_tracker
    log end_training profile free_memory clear maybe_context_parallel deepspeed_ulysses_dl_adapter
    lomo_backward verify_device_map
"""
ARGUMENTS = """
    self device_placement split_batches mixed_precision gradient_accumulation_steps cpu
    dataloader_config deepspeed_plugin fsdp_plugin torch_tp_plugin megatron_lm_plugin rng_types
    log_with project_dir project_config gradient_accumulation_plugin step_scheduler_with_optimizer
    kwargs_handlers dynamo_backend dynamo_plugin deepspeed_plugins parallelism_config
"""


def test_an_accelerator_has_every_member_that_accelerates_has() -> None:
    accelerator = Accelerator(cpu=True)
    assert [name for name in MEMBERS.split() if not hasattr(accelerator, name)] == []


def test_its_arguments_have_accelerates_order() -> None:
    parameters = inspect.signature(Accelerator.__init__).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ARGUMENTS.split()


@pytest.mark.parametrize("axis", ["pipeline_parallel", "context_parallel", "tensor_parallel"])
def test_a_rank_knows_its_place_along_axes_of_one(axis: str) -> None:
    assert getattr(Accelerator(cpu=True), f"{axis}_rank") == 0


def test_a_lomo_optimizer_is_refused() -> None:
    with pytest.raises(NotImplementedError) as error:
        Accelerator(cpu=True).lomo_backward(torch.ones(1), 0.1)
    assert "LOMO optimizers are not here" in str(error.value)
    assert "inside backward" in str(error.value)
    assert "AdamW" in str(error.value)


def test_enums_of_words_compare_list_and_contain() -> None:
    from notebook_accel.utils import DistributedType, DynamoBackend, LoggerType, PrecisionType

    assert DistributedType.MULTI_GPU == "MULTI_GPU" == str(DistributedType.MULTI_GPU)
    assert "bf16" in PrecisionType and "fp17" not in PrecisionType
    assert LoggerType.list()[:2] == ["all", "aim"]
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR


def test_environment_is_lent_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from notebook_accel.utils import (
        are_libraries_initialized,
        clear_environment,
        get_int_from_env,
        parse_choice_from_env,
        parse_flag_from_env,
        patch_environment,
        purge_accelerate_environment,
        str_to_bool,
    )

    monkeypatch.setenv("ACCELERATE_A", "1")
    with pytest.raises(ZeroDivisionError), patch_environment(accelerate_a="yes", new_one=3):
        assert parse_flag_from_env("ACCELERATE_A") and os.environ["NEW_ONE"] == "3"
        assert get_int_from_env(["ABSENT", "NEW_ONE"], 7) == 3
        raise ZeroDivisionError
    assert os.environ["ACCELERATE_A"] == "1" and "NEW_ONE" not in os.environ
    with clear_environment():
        assert not os.environ
    assert get_int_from_env(["ABSENT"], 7) == 7
    assert parse_choice_from_env("ABSENT") == "no" and not parse_flag_from_env("ABSENT")

    @purge_accelerate_environment
    def leaves_something() -> None:
        os.environ["ACCELERATE_A"] = "2"
        os.environ["ACCELERATE_B"] = "2"

    @purge_accelerate_environment
    class Tests:
        def test_it(self) -> None:
            leaves_something()
            os.environ["ACCELERATE_B"] = "2"

    leaves_something()
    Tests().test_it()
    assert os.environ["ACCELERATE_A"] == "1" and "ACCELERATE_B" not in os.environ
    assert (str_to_bool("yes"), str_to_bool("off", to_bool=True)) == (1, False)
    assert are_libraries_initialized("torch", "no_such_library") == ["torch"]
    monkeypatch.setenv("ACCELERATE_A", "many")
    with pytest.raises(ConfigError) as error:
        get_int_from_env(["ACCELERATE_A"], 1)
    assert "ACCELERATE_A is 'many'" in error.value.what
    assert "no whole number" in error.value.why
    assert "unset it" in error.value.fix


def test_packages_are_asked_for_without_importing_them() -> None:
    from notebook_accel.utils import compare_versions, is_torch_version
    from notebook_accel.utils.imports import (
        is_hpu_available,
        is_mps_available,
        is_rich_available,
        is_torchdata_stateful_dataloader_available,
        is_wandb_available,
    )

    for asked in (is_wandb_available, is_torchdata_stateful_dataloader_available):
        assert asked() in (True, False)
    assert (
        not is_hpu_available() and not is_rich_available() and is_mps_available() in (True, False)
    )
    assert is_torch_version(">=", "2.0") and not is_torch_version("<", "2.0")
    assert compare_versions("2.4.0", "==", "2.4") and compare_versions("1.0+cpu", "<", "1.1")
    with pytest.raises(ConfigError) as error:
        compare_versions("torch", "=>", "2.0")
    assert "'=>'" in error.value.what and ">=" in error.value.why and '">="' in error.value.fix
    with pytest.raises(ImportError, match="is_nonsense_available"):
        exec("from notebook_accel.utils import is_nonsense_available")


def test_small_tools_do_what_they_say(tmp_path: os.PathLike[str]) -> None:
    from notebook_accel.utils.modeling import load_state_dict
    from notebook_accel.utils.other import (
        convert_bytes,
        get_pretty_name,
        is_port_in_use,
        load,
        merge_dicts,
        recursive_getattr,
        save,
    )

    assert [convert_bytes(n) for n in (5, 2048, 3 * 1024**6)] == ["5 bytes", "2.0 KB", "3072.0 PB"]
    assert merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert recursive_getattr(os, "path.sep") == os.path.sep
    assert (get_pretty_name(save), get_pretty_name(3)) == ("save", "int")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert is_port_in_use(port) and is_port_in_use(str(port))
    assert not is_port_in_use(port)
    weights = {"a": torch.ones(1)}
    for safe in (False, True):
        target = os.path.join(tmp_path, "weights.safetensors" if safe else "weights.bin")
        save(weights, target, safe_serialization=safe)
        assert torch.equal((load_state_dict if safe else load)(target)["a"], weights["a"])


def test_models_can_be_looked_into() -> None:
    from notebook_accel.utils import (
        convert_file_size_to_int,
        dtype_byte_size,
        find_tied_parameters,
        get_current_device_type,
        get_module_children_bottom_up,
        is_peft_model,
        named_module_tensors,
    )

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[1].register_buffer("scratch", torch.ones(1), persistent=False)
    assert find_tied_parameters(model) == [["0.weight", "2.weight"]]
    everything = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "scratch"}
    assert {name for name, _ in named_module_tensors(model[1])} == everything
    saved = named_module_tensors(model[1], remove_non_persistent=True)
    assert {name for name, _ in saved} == everything - {"scratch"}
    assert len(dict(named_module_tensors(model, include_buffers=False, recurse=True))) == 5
    nested = nn.Sequential(model, nn.ReLU())
    names = [name for name, _ in get_module_children_bottom_up(nested, return_fqns=True)]
    assert names == ["0.0", "0.1", "0.2", "0", "1", ""]
    assert get_module_children_bottom_up(nested)[-1] is nested
    assert [dtype_byte_size(one) for one in (torch.bool, torch.bfloat16)] == [1 / 8, 2]
    assert convert_file_size_to_int("1KB") == 1000
    assert get_current_device_type()[1].startswith("MULTI_")

    class PeftModel(nn.Module):
        pass

    assert is_peft_model(nn.DataParallel(PeftModel())) and not is_peft_model(model)


def test_every_face_has_a_stub_by_which_editors_and_type_checkers_find_it() -> None:
    faces = Path(utils_by_room.__file__).parents[1]
    stubs = faces.parents[1] / "stubs" / "notebook_accel-stubs"
    hidden = {"__init__", "doors", "trainer"}
    modules = {path.relative_to(faces).with_suffix("") for path in faces.rglob("*.py")}
    wanted = {one for one in modules if str(one) not in hidden}
    assert {path.relative_to(stubs).with_suffix("") for path in stubs.rglob("*.pyi")} == wanted
    for one in wanted:
        name = ".".join(one.parts).removesuffix(".__init__")
        text = (stubs / one).with_suffix(".pyi").read_text()
        assert text == f"from notebook_accel.compat.{name} import *\n"
