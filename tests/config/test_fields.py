"""Every field of every wish, plugin and handler, given what it cannot be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from notebook_accel.config.accumulation import GradientAccumulationPlugin
from notebook_accel.config.deepspeed import DeepSpeed, DeepSpeedPlugin
from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.fp8 import (
    AORecipeKwargs,
    FP8RecipeKwargs,
    MSAMPRecipeKwargs,
    TERecipeKwargs,
)
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.config.megatron import Megatron, MegatronLMPlugin, TorchTensorParallelPlugin
from notebook_accel.config.parallelism import ParallelismConfig, TorchTensorParallelConfig
from notebook_accel.config.sequence import (
    DeepSpeedSequenceParallelConfig,
    SequenceParallel,
    TorchContextParallelConfig,
)
from notebook_accel.config.strategy import FACES
from notebook_accel.config.wishes import (
    DDP,
    FSDP,
    STYLES,
    Pipeline,
    SingleDevice,
    Strategy,
    TensorParallel,
)
from notebook_accel.errors import ConfigError, Explained
from notebook_accel.strategies import tensor

KINDS: tuple[type[Any], ...] = (
    *(SingleDevice, DDP, FSDP, TensorParallel, Pipeline, Megatron, SequenceParallel, DeepSpeed),
    *(FullyShardedDataParallelPlugin, DeepSpeedPlugin, MegatronLMPlugin, ParallelismConfig),
    *(TorchTensorParallelPlugin, TorchContextParallelConfig, TorchTensorParallelConfig),
    *(DeepSpeedSequenceParallelConfig, DistributedDataParallelKwargs, AutocastKwargs),
    *(GradScalerKwargs, InitProcessGroupKwargs, ProfileKwargs, GradientAccumulationPlugin),
    *(
        DataLoaderConfiguration,
        AORecipeKwargs,
        TERecipeKwargs,
        MSAMPRecipeKwargs,
        FP8RecipeKwargs,
        TorchDynamoPlugin,
    ),
)


class Odd:
    """Nothing that a field could mean."""

    def __repr__(self) -> str:
        return "Odd()"


ODD, NAN = Odd(), float("nan")
WRONG = (ODD, "moon", NAN, -1, [], {}, True, 3.5)
ANYTHING = set(map(str, WRONG))
CALLED = {("GradientAccumulationPlugin", "num_steps"): "gradient_accumulation_steps"}
TEXT, NUMBER = {"moon"}, {"3.5"}
LISTED = {"moon", "[]", "{}"}  # one name, and lists of none
# What is taken of that, and what it means there.
TAKEN: dict[tuple[str, str], tuple[set[str], str]] = {
    ("FSDP", "transformer_cls_names_to_wrap"): ({"moon", "[]"}, "names, looked for in the model"),
    ("FSDP", "ignored_modules"): (LISTED, "a pattern of names, looked for in the model"),
    ("Pipeline", "split"): (TEXT, "a name, looked for in the model"),
    ("DeepSpeed", "config"): ({"{}"}, "says nothing"),
    ("DeepSpeedPlugin", "hf_ds_config"): ({"{}"}, "says nothing"),
    ("DeepSpeedPlugin", "gradient_clipping"): (NUMBER, "a norm; or auto"),
    ("FullyShardedDataParallelPlugin", "reshard_after_forward"): ({"True"}, "or FSDP 1's words"),
    ("FullyShardedDataParallelPlugin", "cpu_offload"): ({"True"}, "or torch's CPUOffload"),
    ("DeepSpeed", "offload_optimizer_path"): (TEXT, "a folder"),
    ("DeepSpeed", "offload_param_path"): (TEXT, "a folder"),
    ("FullyShardedDataParallelPlugin", "ignored_modules"): (LISTED, "as FSDP's"),
    ("FullyShardedDataParallelPlugin", "transformer_cls_names_to_wrap"): (
        {"moon", "[]"}, "as FSDP's"
    ),
    ("FullyShardedDataParallelPlugin", "mixed_precision_policy"): ({"{}"}, "says nothing"),
    ("FullyShardedDataParallelPlugin", "state_dict_config"): (ANYTHING, "changes nothing"),
    ("FullyShardedDataParallelPlugin", "optim_state_dict_config"): (ANYTHING, "changes nothing"),
    ("DeepSpeedPlugin", "offload_optimizer_nvme_path"): (TEXT, "a folder"),
    ("DeepSpeedPlugin", "offload_param_nvme_path"): (TEXT, "a folder"),
    ("DeepSpeedPlugin", "transformer_moe_cls_names"): (TEXT, "changes nothing"),
    ("DeepSpeedPlugin", "msamp_opt_level"): (TEXT, "changes nothing without enable_msamp"),
    ("MegatronLMPlugin", "tensorboard_dir"): (TEXT, "changes nothing"),
    ("DataLoaderConfiguration", "data_seed"): ({"-1"}, "a number that torch takes"),
    ("TERecipeKwargs", "override_linear_precision"): (ANYTHING, "refused with the recipe"),
    ("FP8RecipeKwargs", "override_linear_precision"): (ANYTHING, "refused with the recipe"),
}  # fmt: skip
# What torch is handed as it is, and judges with what is there.
TAKEN |= {
    ("InitProcessGroupKwargs", "backend"): (TEXT, "a backend, of somebody else perhaps"),
    ("InitProcessGroupKwargs", "init_method"): (TEXT, "a URL of a store"),
    ("InitProcessGroupKwargs", "timeout"): (NUMBER, "seconds"),
    ("ProfileKwargs", "activities"): ({"[]", "{}"}, "none"),
    ("ProfileKwargs", "output_trace_dir"): (TEXT, "a folder"),
    ("TorchDynamoPlugin", "backend"): (TEXT, "a backend, looked for in torch"),
    ("TorchDynamoPlugin", "mode"): (TEXT, "a mode, looked for in torch"),
}
# Numbers of TransformerEngine, whose recipes an Accelerator refuses.
TAKEN |= {
    (kind, name): ({"-1"}, "refused with the recipe")
    for kind in ("TERecipeKwargs", "FP8RecipeKwargs")
    for name in ("margin", "interval", "amax_history_len")
}
# Numbers that Megatron's own loop counts, and that change nothing here.
TAKEN |= {
    ("MegatronLMPlugin", name): ({"-1", "[]"}, "changes nothing")
    for name in (
        *("train_iters", "train_samples", "seq_length", "encoder_seq_length"),
        *("decoder_seq_length", "eval_iters", "eval_interval", "consumed_samples"),
        "recompute_num_layers",
    )
}


def given(kind: type[Any], field: str) -> dict[str, str]:
    """Tell what became of each wrong value: what its error says, or "taken"."""
    found = {}
    for value in WRONG:
        try:
            kind(**{field: value})
        except Explained as error:
            found[str(value)] = f"{error.what}\n{error.why}\n{error.fix}"
        else:
            found[str(value)] = "taken"
    return found


FIELDS = [
    pytest.param(kind, one, id=f"{kind.__name__}-{one.name}")
    for kind in KINDS
    for one in fields(kind)
]


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_names_itself_where_it_is_given_what_it_cannot_be(
    kind: type[Any], field: Any
) -> None:
    means, _ = TAKEN.get((kind.__name__, field.name), (set(), ""))
    declared = str(field.type)
    if "bool" in declared:
        means = means | {"True"}
    if "float" in declared:
        means = means | NUMBER
    if "dict" in declared or "Mapping" in declared:
        means = means | {"{}"}
    found = given(kind, field.name)
    taken = {value for value, said in found.items() if said == "taken"}
    assert taken - means == set()
    name = CALLED.get((kind.__name__, field.name), field.name)
    said = {value: words for value, words in found.items() if value not in taken}
    assert {value: words for value, words in said.items() if name not in words} == {}


def test_no_kind_is_left_out() -> None:
    ours = subclasses(Strategy) | subclasses(KwargsHandler)
    ours = {one for one in ours if one.__module__.startswith("notebook_accel.")}
    assert ours | {face.kind for face in FACES.values()} <= {*KINDS, KwargsHandler}


def subclasses(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__())) - {Strategy}


@pytest.mark.parametrize(
    ("make", "what", "fix"),
    [
        (
            lambda: FullyShardedDataParallelPlugin(fsdp_version=3),
            "fsdp_version=3 is not known",
            "pass one of 1, 2",
        ),
        (lambda: DDP(bucket_cap_mb="x"), "DDP(bucket_cap_mb='x')", "write bucket_cap_mb=1.0"),
        (
            lambda: TensorParallel(data=DDP()),
            "TensorParallel(data=DDP(",
            "write data=FSDP(), with replicas=N for N copies",
        ),
        (
            lambda: FullyShardedDataParallelPlugin(cpu_offload="no"),
            "FullyShardedDataParallelPlugin(cpu_offload='no')",
            "write cpu_offload=True, or leave it out",
        ),
        (
            lambda: FullyShardedDataParallelPlugin(activation_checkpointing="no"),
            "FullyShardedDataParallelPlugin(activation_checkpointing='no')",
            "write activation_checkpointing=True, or leave it out",
        ),
        (
            lambda: MegatronLMPlugin(gradient_clipping=-1.0),
            "Megatron(gradient_clipping=-1.0)",
            "write gradient_clipping=1.0, or leave it out",
        ),
        (
            lambda: FSDP(transformer_cls_names_to_wrap=[Odd]),
            "FSDP(transformer_cls_names_to_wrap=[<class",
            'write transformer_cls_names_to_wrap=["...", "..."]',
        ),
        (
            lambda: TensorParallel(plan={"up": "columns"}),
            "TensorParallel(plan={'up': 'columns'})",
            "write one of these words, or a ParallelStyle",
        ),
        (
            lambda: Megatron(tp_degree=2, plan={"up": 3}),
            "Megatron(plan={'up': 3})",
            "write one of these words, or a ParallelStyle",
        ),
        (
            lambda: ParallelismConfig(tp_handler=3),
            "ParallelismConfig(tp_handler=3)",
            "write tp_handler=TorchTensorParallelConfig(...)",
        ),
        (
            lambda: TorchTensorParallelPlugin(torch_device_mesh="mesh"),
            "TorchTensorParallelPlugin(torch_device_mesh='mesh')",
            "write tp_size=2",
        ),
    ],
)
def test_what_failed_elsewhere_is_said_when_it_is_written(make: Any, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert error.value.what.startswith(what)
    assert error.value.fix.startswith(fix)


def test_the_words_of_a_plan_are_those_that_layers_are_divided_by() -> None:
    assert set(STYLES) == set(tensor.STYLES)
    styles = {word: make() for word, make in tensor.STYLES.items()}
    assert TensorParallel(plan=styles).plan == styles  # torch's own are taken too


def test_a_path_is_as_good_as_its_text() -> None:
    wish = DeepSpeed(offload_optimizer="nvme", offload_optimizer_path=Path("/disk"))
    assert wish == DeepSpeed(offload_optimizer="nvme", offload_optimizer_path="/disk")
