"""Options of the command line, made from the declarations."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from notebook_accel.config.options import add_options, chosen
from notebook_accel.config.resolve import resolve
from notebook_accel.config.sources import Found
from notebook_accel.errors import ConfigError

# A published launch script, word for word (CL06).
PUBLISHED = (
    "--main_process_port=29804 --multi_gpu --num_processes=2 --gpu_ids=0,1 --num_machines=1 "
    "--mixed_precision=bf16 --dynamo_backend=no"
)


def said(words: str, *sections: str) -> dict[str, Any]:
    return {name: value for name, (value, _) in written(words, *sections).items()}


def written(words: str, *sections: str) -> Found:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config_file")
    add_options(parser, *([sections] if sections else []))
    return chosen(parser.parse_args(words.split()))


def test_a_published_command_line_is_understood() -> None:
    assert said(PUBLISHED) == {
        "use_port": 29804,
        "device": [0, 1],
        "num_processes": 2,
        "num_nodes": 1,
        "mixed_precision": "bf16",
        "dynamo_backend": "no",
    }


def test_what_was_not_written_is_not_chosen() -> None:
    assert said("") == {}
    assert said("--config_file x.yaml") == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--num-processes 2", {"num_processes": 2}),
        ("--num_processes 2 --num_processes 3", {"num_processes": 3}),
        ("--mixed_precision FP16", {"mixed_precision": "fp16"}),
        ("--cpu", {"device": "cpu"}),
        ("--gpu_ids 1,0 --multi_gpu", {"device": [1, 0]}),
        ("--multi_gpu --gpu_ids all", {"device": "cuda"}),
        ("--device cuda --gpu_ids 2", {"device": [2]}),
        ("--use_fsdp", {"strategy": "fsdp"}),
        ("--fsdp_offload_params TRUE", {"fsdp_offload_params": True}),
        ("--machine-rank 1 --num_machines 2", {"node_rank": 1, "num_nodes": 2}),
        ("--debug", {"debug": True}),
        ("--no_debug", {"debug": False}),
        ("--tpu_cluster", {"tpu_use_cluster": True}),
        ("--no_tpu_cluster", {"tpu_use_cluster": False}),
        ("--vm a --vm b", {"tpu_vm": ["a", "b"]}),
        ("--env A=1,2", {"tpu_env": ["A=1,2"]}),
        ("-t 3", {"tee": "3"}),
        ("--fp8_override_linear_precision yes,no,no",
         {"fp8_override_linear_precision": [True, False, False]}),
        ("--gradient_accumulation_steps 4", {"gradient_accumulation_steps": 4}),
    ],
)  # fmt: skip
def test_options_are_values_in_either_spelling(words: str, expected: dict[str, Any]) -> None:
    assert said(words) == expected


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("--num_processes two", "--num_processes two is not a whole number", "--num_processes 2"),
        ("--num_machines 0", "--num_machines 0 is out of range", "--num_machines 1"),
        ("--mixed-precision bf17", "--mixed_precision bf17 is not known", "--mixed_precision bf16"),
        (
            "--cpu --multi_gpu",
            "--cpu says device is 'cpu', but --multi_gpu says 'cuda'",
            "write one of the two",
        ),
        (
            "--use_fsdp --use_deepspeed",
            "--use_fsdp says strategy is 'fsdp', but --use_deepspeed says 'deepspeed'",
            "write one of the two",
        ),
        (
            "--debug --no_debug",
            "--debug says debug is True, but --no_debug says False",
            "write one of the two",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named_as_it_was_written(
    words: str, what: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        said(words)
    assert what in error.value.what
    assert fix in error.value.fix


def test_a_command_takes_the_sections_that_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("--num_processes 2", "run") == {"num_processes": 2}
    with pytest.raises(SystemExit):
        said("--fsdp_version 2", "run")
    assert "--fsdp_version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "value", "expected"),
    [
        ("--num-processes 2", "num_processes", 3, "--num_processes 3"),
        ("--machine_rank 1 --num_machines 2", "node_rank", 0, "--machine_rank 0"),
        ("-t 3", "tee", "0", "--tee 0"),
        ("--use_cpu", "device", "cpu", "--use_cpu"),
        ("--cpu", "device", "cuda", "--multi_gpu"),
        ("--cpu", "device", "mps", "--device mps"),
        ("--debug", "debug", False, "--no_debug"),
        ("--no_tpu_cluster", "tpu_use_cluster", True, "--tpu_use_cluster"),
        ("--fsdp_offload_params yes", "fsdp_offload_params", False, "--fsdp_offload_params false"),
    ],
)
def test_an_option_is_written_again_as_it_was_written(
    words: str, name: str, value: Any, expected: str
) -> None:
    config = resolve({}, {}, options=written(words))
    assert config.origin(name).kind == "option"
    assert config.write(name, value) == expected


def test_a_setting_that_nobody_wrote_is_written_as_the_one_beside_it() -> None:
    config = resolve({}, {"FSDP_VERSION": "2"}, options=written("--machine_rank 0 --zero_stage 2"))
    assert config.write("num_nodes", 2, "node_rank") == "--num_machines 2"
    assert config.write("strategy", "deepspeed", "zero_stage") == "--use_deepspeed"
    assert config.write("strategy", "fsdp", "fsdp_version") == "ACCELERATE_USE_FSDP=true"
    assert config.source("zero_stage") == "option --zero_stage"
    in_python = resolve({"node_rank": 0}, {})
    assert in_python.write("num_nodes", 2, "node_rank") == "num_nodes=2"


def test_words_of_the_command_line_are_not_those_of_a_cell() -> None:
    for words, what, fix in (
        (
            "--machine_rank 2 --num_machines 2",
            "--machine_rank 2, but --num_machines 2",
            "write a --machine_rank from 0 to 1, or --num_machines 3 if so many take part",
        ),
        (
            "--machine_rank 1",
            "--machine_rank 1, but --num_machines is 1",
            "write --num_machines 2 if so many take part, or leave --machine_rank out",
        ),
        (
            "--use_deepspeed --deepspeed_config_file ds.json --zero_stage 3",
            "--deepspeed_config_file ds.json, but --zero_stage 3",
            "write zero_stage into that file, and leave --zero_stage out",
        ),
        (
            "--parallelism_config_tp_size 2 --num_processes 3",
            "--num_processes 3, but --parallelism_config_tp_size 2",
            "write --num_processes 2, or other sizes",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            resolve({}, {}, options=written(words))
        assert (error.value.what, error.value.fix) == (what, fix)
