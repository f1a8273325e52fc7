"""Settings objects of another library with our classes' names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from notebook_accel.config.accumulation import GradientAccumulationPlugin, chosen_accumulation
from notebook_accel.config.adoption import adopt
from notebook_accel.config.dynamo import TorchDynamoPlugin, chosen_plugin
from notebook_accel.config.handlers import (
    DistributedDataParallelKwargs,
    Handlers,
    InitProcessGroupKwargs,
)
from notebook_accel.errors import ConfigError


def foreign(name: str, **defaults: object) -> type:
    """A settings class as another library would define it."""
    return dataclass(
        type(name, (), {"__annotations__": dict.fromkeys(defaults, object), **defaults})
    )


def test_what_was_changed_in_it_counts_and_what_we_do_not_know_is_left_out() -> None:
    Theirs = foreign("InitProcessGroupKwargs", backend="nccl", timeout=None, unheard_of=1)
    taken = adopt(Theirs(timeout=timedelta(seconds=5), unheard_of=2), InitProcessGroupKwargs)
    assert type(taken) is InitProcessGroupKwargs
    assert taken.to_kwargs() == {"timeout": timedelta(seconds=5)}


def test_anything_else_comes_back_as_it_is() -> None:
    ours = InitProcessGroupKwargs()
    assert adopt(ours, InitProcessGroupKwargs) is ours
    assert adopt(None, InitProcessGroupKwargs) is None
    other = foreign("SomethingElse", a=1)()
    assert adopt(other, InitProcessGroupKwargs) is other


def test_handlers_of_another_library_are_taken() -> None:
    Theirs = foreign(
        "DistributedDataParallelKwargs", find_unused_parameters=False, bucket_cap_mb=25
    )
    handlers = Handlers.of([Theirs(find_unused_parameters=True)])
    assert handlers.kwargs(DistributedDataParallelKwargs) == {"find_unused_parameters": True}
    with pytest.raises(ConfigError) as error:
        Handlers.of([foreign("SomethingElse", a=1)()])
    assert "which is no handler" in error.value.what


def test_plugins_of_another_library_are_taken() -> None:
    Accumulation = foreign("GradientAccumulationPlugin", num_steps=None, sync_each_batch=False)
    taken = chosen_accumulation(Accumulation(num_steps=4), None)
    assert type(taken) is GradientAccumulationPlugin and taken.num_steps == 4
    Dynamo = foreign("TorchDynamoPlugin", backend=None, mode=None)
    compiler = chosen_plugin(None, Dynamo(backend="INDUCTOR"))
    assert type(compiler) is TorchDynamoPlugin and compiler.to_kwargs() == {"backend": "inductor"}


def test_accelerates_own_objects_are_taken() -> None:
    pytest.importorskip("accelerate")
    from accelerate import utils as theirs

    from notebook_accel import Accelerator

    accelerator = Accelerator(
        cpu=True,
        mixed_precision=theirs.PrecisionType.BF16,
        kwargs_handlers=[
            theirs.DistributedDataParallelKwargs(find_unused_parameters=True),
            theirs.InitProcessGroupKwargs(),
        ],
        gradient_accumulation_plugin=theirs.GradientAccumulationPlugin(num_steps=2),
        dynamo_plugin=theirs.TorchDynamoPlugin(),
        dataloader_config=theirs.DataLoaderConfiguration(even_batches=False),
        project_config=theirs.ProjectConfiguration(),
    )
    assert accelerator.gradient_accumulation_steps == 2
    assert accelerator.mixed_precision == "bf16"
    assert not accelerator.even_batches
    assert not accelerator.state.dynamo_plugin.compiles
