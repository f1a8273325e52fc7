"""Accelerate's axes of ranks become wishes, and their product is checked at once."""

from __future__ import annotations

from typing import Any

import pytest

from notebook_accel import Accelerator, FullyShardedDataParallelPlugin, notebook_launcher
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, TensorParallel
from notebook_accel.errors import ConfigError


@pytest.mark.parametrize(
    ("sizes", "world", "wish"),
    [
        ({"dp_replicate_size": 4}, 4, DDP()),
        ({"dp_shard_size": 4}, 4, FSDP()),
        ({"dp_replicate_size": 2, "dp_shard_size": 2}, 4, FSDP(replicas=2)),
        ({"tp_size": 2}, 2, TensorParallel(size=2)),
        ({"dp_shard_size": 2, "tp_size": 2}, 4, TensorParallel(size=2)),
        (
            {"dp_replicate_size": 2, "dp_shard_size": 2, "tp_size": 2},
            8,
            TensorParallel(size=2, data=FSDP(replicas=2)),
        ),
    ],
)
def test_axes_are_wishes(sizes: dict, world: int, wish: Any) -> None:
    assert ParallelismConfig(**sizes).wish(world) == wish


def test_a_product_that_is_not_the_world_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        ParallelismConfig(dp_shard_size=2, tp_size=2).wish(2)
    assert "dp_shard_size=2 x tp_size=2) in a world of 2 ranks" in error.value.what
    assert "multiply to 4" in error.value.why
    assert "launch 4 processes" in error.value.fix


@pytest.mark.parametrize("name", ["dp_shard_size", "tp_size"])
@pytest.mark.parametrize("size", [0, True, "2"])
def test_sizes_count_ranks(name: str, size: Any) -> None:
    with pytest.raises(ConfigError, match="size is a whole number of at least 1"):
        ParallelismConfig(**{name: size})


def test_stages_too_are_an_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_SIZE", "2")
    assert ParallelismConfig().wish(2) == Pipeline(stages=2)
    axes = ParallelismConfig(dp_shard_size=2, tp_size=2)
    assert axes.wish(8) == Pipeline(stages=2, inside=TensorParallel(size=2))
    assert axes.active_mesh_dims == ["dp_shard", "pp", "tp"]
    assert ParallelismConfig(dp_shard_size=2).wish(4) == Pipeline(stages=2, inside=FSDP())
    with pytest.raises(ConfigError, match=r"pp_size=2 x tp_size=2\) in a world of 2 ranks"):
        ParallelismConfig(tp_size=2).wish(2)
    with pytest.raises(ConfigError, match=r"\(pp_size=2, cp_size=2\)") as error:
        ParallelismConfig(cp_size=2)
    assert error.value.why == "a stage of a pipeline sees whole sequences"
    assert error.value.fix == "leave one of them at 1"


def test_it_describes_its_axes_as_accelerate_does() -> None:
    axes = ParallelismConfig(dp_replicate_size=2, tp_size=2)
    assert (axes.total_size, axes.data_parallel_size, axes.non_data_parallel_size) == (4, 2, 2)
    assert axes.active_mesh_dims == ["dp_replicate", "tp"]
    assert (axes.dp_dim_names, axes.non_dp_dim_names) == (["dp_replicate"], ["tp"])
    assert axes.tp_enabled and axes.dp_replicate_enabled and not axes.dp_shard_enabled
    assert axes.to_json()["tp_size"] == 2


def makes(**arguments: Any) -> list[str]:
    accelerator = Accelerator(cpu=True, **arguments)
    return [str(accelerator._engine.wish), str(accelerator.parallelism_config is not None)]


def test_an_accelerator_takes_axes_by_argument_and_by_the_environment() -> None:
    plugin = FullyShardedDataParallelPlugin(reshard_after_forward=False)
    arguments = {
        "parallelism_config": ParallelismConfig(dp_replicate_size=2),
        "fsdp_plugin": plugin,
    }
    told = notebook_launcher(makes, (), 2, device="cpu", kwargs=arguments)[0]
    assert "reshard_after_forward=False" in told[0] and "replicas=2" in told[0]
    env = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}
    told = notebook_launcher(makes, (), 2, device="cpu", env=env)[0]
    assert told[0].startswith("FSDP(") and told[1] == "True"


def test_the_class_of_a_wish_is_refused_with_the_call_to_write() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, strategy=FSDP)  # type: ignore[arg-type]
    assert error.value.fix == "write strategy=FSDP()"
    with pytest.raises(ConfigError, match="strategy=FSDP is a class"):
        notebook_launcher(makes, (), 2, device="cpu", strategy=FSDP)  # type: ignore[arg-type]


def test_an_unknown_word_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="strategy='fdsp'"):
        Accelerator(cpu=True, strategy="fdsp")


def test_two_ways_to_say_it_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match=r"strategy=.* and parallelism_config are both given"):
        Accelerator(cpu=True, strategy=FSDP(), parallelism_config=ParallelismConfig())


def test_a_plugin_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, fsdp_plugin="full_shard")
    assert error.value.what == "fsdp_plugin='full_shard' is no FullyShardedDataParallelPlugin"
    assert "fsdp_plugin=FullyShardedDataParallelPlugin(...)" in error.value.fix
