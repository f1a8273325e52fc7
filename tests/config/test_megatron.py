"""Megatron's degrees under Accelerate's names: what is served, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.installed import is_installed
from notebook_accel.config.megatron import Megatron, MegatronLMPlugin, TorchTensorParallelPlugin
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, Strategy, TensorParallel
from notebook_accel.errors import ConfigError, MissingPackage

CUT = FSDP(reshard_after_forward=False)
COPIES = FSDP(reshard_after_forward=False, replicas=2)


@pytest.mark.parametrize(
    ("degrees", "world", "engine"),
    [
        ({}, 4, DDP()),
        ({"use_distributed_optimizer": True}, 4, CUT),
        ({"use_custom_fsdp": True}, 4, FSDP()),
        ({"tp_degree": 2}, 4, TensorParallel(2, data=COPIES)),
        ({"tp_degree": 2, "use_distributed_optimizer": True}, 4, TensorParallel(2, data=CUT)),
        ({"pp_degree": 2, "num_micro_batches": 4}, 4, Pipeline(2, 4)),
        (
            {"tp_degree": 2, "pp_degree": 2},
            8,
            Pipeline(2, inside=TensorParallel(2, data=COPIES)),
        ),
        ({"context_parallel_size": 2}, 2, SequenceParallel(2)),
    ],
)
def test_degrees_are_engines(degrees: dict, world: int, engine: Strategy) -> None:
    assert Megatron(**degrees).engine(world) == engine


@pytest.mark.parametrize(
    ("degrees", "world", "what"),
    [
        ({"tp_degree": 2, "pp_degree": 2}, 2, "tp_degree=2 x pp_degree=2) in a world of 2 ranks"),
        ({"context_parallel_size": 3}, 4, "context_parallel_size=3) in a world of 4 ranks"),
    ],
)
def test_degrees_multiply_to_the_world(degrees: dict, world: int, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        Megatron(**degrees).engine(world)
    assert what in error.value.what
    assert "launch a multiple of" in error.value.fix


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"tp_degree": 0}, "Megatron(tp_degree=0)"),
        ({"pp_degree": True}, "Megatron(pp_degree=True)"),
        ({"pp_degree": 2, "context_parallel_size": 2}, "pp_degree=2, context_parallel_size=2"),
        ({"layers": "mine"}, "layers='mine'"),
        ({"layers": "core", "pp_degree": 2}, 'Megatron(layers="core", pp_degree=2)'),
    ],
)
def test_degrees_that_cannot_be_are_refused(fields: dict, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        Megatron(**fields)
    assert what in error.value.what


def test_a_plugin_has_accelerates_defaults_and_asks_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MegatronLMPlugin().wish() == Megatron(gradient_clipping=1.0)
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "2")
    monkeypatch.setenv("MEGATRON_LM_GRADIENT_CLIPPING", "0.5")
    monkeypatch.setenv("MEGATRON_LM_SEQUENCE_PARALLELISM", "true")
    plugin = MegatronLMPlugin(pp_degree=2, num_micro_batches=4, recompute_granularity="full")
    assert plugin.wish() == Megatron(
        tp_degree=2,
        pp_degree=2,
        num_micro_batches=4,
        gradient_clipping=0.5,
        recompute_activations=True,
    )
    assert plugin.changes_nothing == ["sequence_parallelism"]
    assert MegatronLMPlugin(layers="core").wish() == Megatron(
        tp_degree=2, gradient_clipping=0.5, layers="core"
    )


def test_what_the_loop_says_itself_changes_nothing() -> None:
    plugin = MegatronLMPlugin(train_iters=100, eval_interval=10, seq_length=128, eval_iters=1)
    assert plugin.wish() == Megatron(gradient_clipping=1.0)
    assert MegatronLMPlugin(expert_model_parallel_size=1).wish() == plugin.wish()


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"num_layers_per_virtual_pipeline_stage": 2}, "stages_per_rank=2"),
        ({"optimizer_cpu_offload": True}, "FSDP(cpu_offload=True)"),
        ({"hidden_dropout": 0.1}, "hidden_dropout: your model"),
        ({"lr_decay_style": "cosine"}, "lr_decay_style: your optimizer and its torch scheduler"),
        ({"eod_mask_loss": True}, "eod_mask_loss: the loss_fn"),
        ({"custom_get_batch_function": print}, "your own loop"),
        ({"other_megatron_args": {"a": 1}}, "your own loop"),
    ],
)
def test_what_only_megatrons_own_models_and_steps_do_is_one_error(fields: dict, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        MegatronLMPlugin(**fields)
    for name in fields:
        assert name in error.value.what
    assert fix in error.value.fix


def test_all_that_cannot_be_served_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        MegatronLMPlugin(hidden_dropout=0.1, no_save_optim=True)
    assert "no_save_optim=True, hidden_dropout=0.1" in error.value.what
    assert "accelerator.save_model" in error.value.fix


class Mesh:
    """Has the size of its axes, as a mesh of torch's does."""

    mesh_dim_names = ("tp",)

    def __getitem__(self, axis: str) -> Any:
        return self if axis == "tp" else None

    def size(self) -> int:
        return 4


def test_the_older_plugin_of_tensor_parallelism_is_a_wish() -> None:
    assert TorchTensorParallelPlugin().wish() == DDP()
    assert TorchTensorParallelPlugin(tp_size=2).wish() == TensorParallel(2)
    assert TorchTensorParallelPlugin(torch_device_mesh=Mesh()).wish() == TensorParallel(4)
    with pytest.raises(ConfigError, match=r"size=0"):
        TorchTensorParallelPlugin(tp_size=0)


def test_megatrons_own_layers_need_its_package() -> None:
    def prepares() -> str:
        try:
            Accelerator(cpu=True, strategy=Megatron(tp_degree=2, layers="core"))
        except MissingPackage as error:
            return str(error)
        return "it is installed"

    if is_installed("megatron"):
        pytest.skip("megatron-core is installed")
    for told in notebook_launcher(prepares, (), 2, device="cpu"):
        assert 'Megatron(layers="core") needs megatron-core, which is not installed' in told
        assert "pip install 'notebook-accel[megatron]'" in told
