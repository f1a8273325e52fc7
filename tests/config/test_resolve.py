"""Argument, environment, file, default: which one counts, and that each is remembered."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from notebook_accel import Accelerator, RunConfig
from notebook_accel.config.absent import idle, refuse_unbuilt
from notebook_accel.config.catalog.setting import DEFAULT_PRECISION, given, unsaid
from notebook_accel.config.kinds import PrecisionType
from notebook_accel.config.resolve import resolve
from notebook_accel.config.settings import SETTINGS, by_variable
from notebook_accel.config.show import lines
from notebook_accel.config.sources import Source
from notebook_accel.config.store import ConfigFile, read
from notebook_accel.config.training import setting_of, settings_of
from notebook_accel.config.unused import unused
from notebook_accel.config.variables import strangers
from notebook_accel.errors import ConfigError, NotHere


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    path = tmp_path / "config.yaml"
    path.write_text(
        "# mine\nmixed_precision: fp16\nnum_processes: 4\ndeepspeed_config:\n"
        "  gradient_accumulation_steps: 8\n"
    )
    return read(path)


def test_each_place_beats_those_after_it(file: ConfigFile) -> None:
    env = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
    config = resolve({"gradient_accumulation_steps": 1}, env, file)
    assert config.gradient_accumulation_steps == 1
    assert config.source("gradient_accumulation_steps") == "argument"
    assert config.mixed_precision == "bf16"
    assert config.source("mixed_precision") == "environment variable ACCELERATE_MIXED_PRECISION"
    assert config["num_processes"] == 4
    assert config.source("num_processes") == f"file {file.path}, line 3"
    assert config.num_nodes == 1
    assert config.source("num_nodes") == "default"
    assert set(config.given()) == {
        "num_processes",
        "mixed_precision",
        "gradient_accumulation_steps",
    }


def test_no_precision_as_a_mere_default_asks_for_nothing(file: ConfigFile) -> None:
    assert resolve({"mixed_precision": DEFAULT_PRECISION}, {}, file).mixed_precision == "fp16"
    assert resolve({"mixed_precision": None}, {}, file).mixed_precision == "fp16"
    assert resolve({"mixed_precision": "no"}, {}, file).mixed_precision == "no"


@pytest.mark.parametrize("value", ["static", 0, 0.1])
def test_a_default_that_nobody_asked_for_is_like_any_other_value(value: object) -> None:
    default = unsaid(value)
    assert default == value and repr(default) == repr(value)
    assert not given(default) and given(value)
    assert not given(pickle.loads(pickle.dumps(default)))


def test_an_empty_variable_and_one_that_says_no_ask_for_nothing() -> None:
    env = {"ACCELERATE_MIXED_PRECISION": "", "ACCELERATE_USE_CPU": "0", "ACCELERATE_USE_FSDP": "no"}
    assert resolve({}, env).given() == {}


def test_switches_of_the_environment_stand_for_values() -> None:
    config = resolve({}, {"ACCELERATE_USE_CPU": "yes", "ACCELERATE_USE_FSDP": "TRUE"})
    assert (config.device, config.strategy) == ("cpu", "fsdp")


def test_two_switches_for_one_setting_are_refused_by_their_names() -> None:
    with pytest.raises(ConfigError) as error:
        resolve({}, {"ACCELERATE_USE_FSDP": "1", "ACCELERATE_USE_DEEPSPEED": "1"})
    assert "ACCELERATE_USE_FSDP" in error.value.what
    assert "ACCELERATE_USE_DEEPSPEED" in error.value.what
    assert "unset" in error.value.fix


@pytest.mark.parametrize(
    ("variable", "text", "what", "fix"),
    [
        ("ACCELERATE_MIXED_PRECISION", "fp17", "=fp17 is not known", "MIXED_PRECISION=fp16"),
        ("FSDP_VERSION", "3", "FSDP_VERSION=3 is not known", "write one of 1, 2"),
        ("FSDP_OFFLOAD_PARAMS", "maybe", "is not yes or no", "FSDP_OFFLOAD_PARAMS=true"),
        (
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "0",
            "is out of range",
            "GRADIENT_ACCUMULATION_STEPS=1",
        ),
    ],
)
def test_a_variable_that_cannot_be_is_named(variable: str, text: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({}, {variable: text})
    assert error.value.what.startswith(f"{variable}={text}")
    assert what in error.value.what
    assert fix in error.value.fix


def test_numbers_of_threads_for_each_level_are_read_by_their_first() -> None:
    assert resolve({}, {"OMP_NUM_THREADS": "4,2"}).num_cpu_threads_per_process == 4


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({"num_proceses": 2}, "there is no setting 'num_proceses'", "did you mean num_processes?"),
        ({"xyzzy": 2}, "there is no setting 'xyzzy'", "leave it out"),
        ({"num_processes": "2"}, "num_processes='2' is a str", "write num_processes=2"),
        ({"fsdp_offload_params": 1}, "fsdp_offload_params=1 is an int", "=True"),
        ({"tpu_vm": "host"}, "tpu_vm='host' is a str", "write tpu_vm=['a', 'b']"),
        ({"strategy": "zero"}, "strategy='zero' is not known", "pass one of 'auto', 'ddp'"),
        ({"rdzv_backend": 3}, "rdzv_backend=3 is an int", "write rdzv_backend='static'"),
        ({"zero_stage": True}, "zero_stage=True is a bool", "write zero_stage=1"),
        (
            {"parallelism_config_cp_size": 2, "parallelism_config_sp_size": 2},
            "parallelism_config_cp_size=2, but parallelism_config_sp_size=2",
            "leave one",
        ),
        ({"node_rank": 1}, "node_rank=1, but num_nodes=1", "write num_nodes=2 if so many"),
        (
            {"strategy": "fsdp", "fsdp_version": 2, "fsdp_forward_prefetch": True},
            "fsdp_version=2, but fsdp_forward_prefetch=True",
            "leave fsdp_forward_prefetch out",
        ),
    ],
)
def test_a_run_config_is_valid_or_is_none(settings: dict[str, object], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig(**settings)
    assert error.value.what.startswith(what)
    assert fix in error.value.fix


def test_a_run_config_is_a_value() -> None:
    config = RunConfig(num_processes=2, mixed_precision=PrecisionType.BF16)
    assert repr(config) == "RunConfig(num_processes=2, mixed_precision='bf16')"
    assert eval(repr(config)) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.but(num_processes=3).given() == {"num_processes": 3, "mixed_precision": "bf16"}
    assert config.num_processes == 2
    with pytest.raises(AttributeError, match=r"write config\.but\(num_processes=3\)"):
        config.num_processes = 3
    with pytest.raises(AttributeError, match="no setting 'num_proces'"):
        _ = config.num_proces
    with pytest.raises(ConfigError, match="there is no setting 'num_proces'"):
        _ = config["num_proces"]
    with pytest.raises(ConfigError, match="there is no setting 'num_proces'"):
        config.source("num_proces")


def test_ranks_of_all_machines_are_divided_among_them() -> None:
    assert RunConfig().num_local_processes is None
    assert RunConfig(num_processes=16, num_nodes=2).num_local_processes == 8
    with pytest.raises(ConfigError) as error:
        _ = RunConfig(num_processes=3, num_nodes=2).num_local_processes
    assert error.value.what == "num_processes=3 on 2 machines"
    assert error.value.fix == "write num_processes=4"


def test_a_whole_config_keeps_what_it_knows_of_its_sources(file: ConfigFile) -> None:
    whole = resolve({"num_processes": 2}, {}, file)
    config = resolve({}, {"ACCELERATE_MIXED_PRECISION": "bf16"}, None, whole)
    assert config.mixed_precision == "bf16"  # the variable beats what whole has from a file
    assert config.source("num_processes") == "argument"


def test_what_a_launch_writes_is_what_a_worker_reads() -> None:
    config = RunConfig(
        device="cpu",
        mixed_precision="bf16",
        strategy="fsdp",
        fsdp_version=2,
        fsdp_offload_params=True,
        gradient_accumulation_steps=4,
        dynamo_backend="inductor",
        use_parallelism_config=True,
        parallelism_config_tp_size=2,
        fp8_override_linear_precision=[True, False, True],
        debug=True,
    )
    written = config.environment()
    assert set(written) <= set(by_variable())
    assert written["FSDP_OFFLOAD_PARAMS"] == "true"
    assert written["FSDP_SHARDING_STRATEGY"] == "FULL_SHARD"  # a default of what is in use
    assert written["ACCELERATE_FP8_OVERRIDE_WGRAD"] == "true"
    assert "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in written
    again = resolve({}, written)
    for name, value in config.given().items():
        assert again[name] == value, name
    assert again.environment() == written


def test_every_setting_that_has_a_variable_travels_by_it() -> None:
    examples = {"int": 3, "float": 0.5, "bool": True, "str": "word", "list": [True, False, True]}
    for name, one in SETTINGS.items():
        if one.env:
            value = one.choices[-1] if one.choices else examples[one.kind]
            written = RunConfig(**{name: value}).environment()
            assert resolve({}, written)[name] == value, name


def test_deepspeed_is_told_which_fields_were_given() -> None:
    config = RunConfig(strategy="deepspeed", zero_stage=3, gradient_accumulation_steps=2)
    fields = config.environment()["ACCELERATE_CONFIG_DS_FIELDS"].split(",")
    assert set(fields) == {"zero_stage", "gradient_accumulation_steps"}


def test_deepspeeds_own_file_says_all_of_it_to_workers_too() -> None:
    written = RunConfig(strategy="deepspeed", deepspeed_config_file="zero3.json").environment()
    assert "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in written
    # another launcher may write defaults beside it
    assert resolve({}, {**written, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}).zero_stage == 2


def test_none_as_another_program_writes_it_says_nothing() -> None:
    env = {"FSDP_BACKWARD_PREFETCH": "None", "ACCELERATE_GRADIENT_CLIPPING": "auto"}
    assert resolve({}, {**env, "FSDP_VERSION": "none"}).given() == {}


def test_a_misspelt_variable_is_found_unless_the_right_one_is_there() -> None:
    env = {"ACCELERATE_MIXED_PRECISON": "bf16", "FSDP_X": "1", "MY_ACCELERATE_USE_CPU": "1"}
    assert strangers(env) == [("ACCELERATE_MIXED_PRECISON", "ACCELERATE_MIXED_PRECISION")]
    assert strangers({**env, "ACCELERATE_MIXED_PRECISION": "no"}) == []


def test_secrets_are_written_nowhere() -> None:
    config = RunConfig(aws_secret_access_key="do not tell")
    assert config.environment() == {}
    assert "do not tell" not in "\n".join(lines(config, everything=True))


def test_what_is_shown_says_where_it_is_from(file: ConfigFile) -> None:
    shown = lines(resolve({"debug": True}, {"ACCELERATE_USE_CPU": "1"}, file))
    text = [" ".join(line.split()) for line in shown]
    assert text == [
        "The run",
        "device cpu environment variable ACCELERATE_USE_CPU",
        f"num_processes 4 file {file.path}, line 3",
        f"mixed_precision fp16 file {file.path}, line 2",
        f"gradient_accumulation_steps 8 file {file.path}, line 5",
        "debug yes argument",
    ]
    assert lines(RunConfig()) == ["nothing was chosen: every setting has its default"]
    assert len(lines(RunConfig(), everything=True)) > len(SETTINGS)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"device": "tpu"}, "device='tpu' asks for what is not here yet"),
        ({"compute_environment": "AMAZON_SAGEMAKER"}, "compute_environment='AMAZON_SAGEMAKER'"),
    ],
)
def test_what_is_not_built_yet_can_be_wanted_and_not_be_run(
    settings: dict[str, object], what: str
) -> None:
    config = RunConfig(**settings)
    if all(value not in SETTINGS[name].coming for name, value in settings.items()):
        pytest.skip("it is built by now")
    with pytest.raises(NotHere) as error:
        refuse_unbuilt(config)
    assert error.value.what.startswith(what)
    assert "not built yet" in error.value.why
    assert "choose another" in error.value.fix


def test_what_changes_nothing_is_named_only_where_it_was_chosen() -> None:
    assert idle(RunConfig(enable_cpu_affinity=True, same_network=True)) == ["enable_cpu_affinity"]


def test_an_accelerator_reads_variables_when_it_is_made_and_arguments_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "gradient_accumulation_steps"
    monkeypatch.setenv(f"ACCELERATE_{name.upper()}", "8")
    assert settings_of({})[name] == setting_of(name, None) == 8
    assert setting_of(name, 2) == 2
    assert settings_of({name: 3})[name] == 3
    both = settings_of({"mixed_precision": "fp16"}, mixed_precision=PrecisionType.BF16)
    assert both.mixed_precision == "bf16"
    for value in (2, 2.0, "2", "2.0"):
        assert setting_of(name, value) == 2
    for value in (0, -1, 1.5, True, "many", [2]):
        with pytest.raises(ConfigError, match=f"{name}="):
            setting_of(name, value)


def test_an_accelerator_refuses_what_a_launch_asks_for_and_nobody_built() -> None:
    with pytest.raises(NotHere) as error:
        settings_of({"device": "tpu"})
    assert "device='tpu'" in error.value.what


def test_a_process_that_is_alone_computes_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert Accelerator().device.type == "meta"
    assert Accelerator(cpu=True).device.type == "cpu"
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "gpu")
    with pytest.raises(ConfigError) as error:
        Accelerator()
    assert error.value.what == "ACCELERATE_TORCH_DEVICE=gpu is no device"
    assert "cuda:1" in error.value.fix


def test_sizes_turn_axes_on_wherever_they_stand(tmp_path: Path) -> None:
    name = "parallelism_config_tp_size"
    assert RunConfig(parallelism_config_tp_size=2).use_parallelism_config
    assert resolve({}, {name.upper(): "2"}).use_parallelism_config
    assert resolve({}, {}, options={name: (2, Source("option", name))}).use_parallelism_config
    (tmp_path / "a.yaml").write_text("parallelism_config:\n  tp_size: 2\n")
    assert resolve({}, {}, read(tmp_path / "a.yaml")).use_parallelism_config
    assert not RunConfig(parallelism_config_tp_size=1).use_parallelism_config
    off = RunConfig(parallelism_config_tp_size=2, use_parallelism_config=False)
    assert not off.use_parallelism_config
    assert list(unused(off)) == [
        "parallelism_config_tp_size=2 counts only with use_parallelism_config=True"
    ]


def test_settings_of_what_is_not_in_use_are_told_in_the_words_of_their_place(
    tmp_path: Path,
) -> None:
    plugin = "or a DeepSpeedPlugin of the script"
    assert list(unused(RunConfig(zero_stage=3))) == [
        f"zero_stage=3 counts only with strategy='deepspeed' {plugin}"
    ]
    env = {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_GRADIENT_CLIPPING": "1"}
    assert list(unused(resolve({}, env))) == [
        "ACCELERATE_DEEPSPEED_ZERO_STAGE=3, ACCELERATE_GRADIENT_CLIPPING=1.0 count only with "
        f"ACCELERATE_USE_DEEPSPEED=true {plugin}"
    ]
    assert list(unused(resolve({}, {**env, "ACCELERATE_USE_DEEPSPEED": "1"}))) == []
    assert list(unused(RunConfig(zero_stage=2))) == []  # as it would be anyway


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        (
            {"num_processes": 4, "use_parallelism_config": True},
            "num_processes=4, but use_parallelism_config=True",
            "write parallelism_config_dp_replicate_size=4 for a whole copy on each",
        ),
        (
            {"num_processes": 3, "strategy": "megatron_lm", "megatron_lm_tp_degree": 2},
            "num_processes=3, but megatron_lm_tp_degree=2",
            "write num_processes=4, or other degrees",
        ),
        ({"use_port": 99999}, "use_port=99999 is out of range", "write another, or leave it out"),
        ({"use_port": -1}, "use_port=-1 is out of range", "write use_port=0"),
        ({"monitor_interval": -1.0}, "monitor_interval=-1.0 is out", "monitor_interval=0.1"),
        ({"gradient_clipping": 0.0}, "gradient_clipping=0.0 is out", "write a positive number"),
    ],
)
def test_what_a_launch_could_not_do_is_no_run_config(
    settings: dict[str, object], what: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig(**settings)
    assert error.value.what.startswith(what)
    assert fix in error.value.fix


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [
        ("dynamo_backend", "inducter", "inductor"),
        ("dynamo_backend", "AOT_EGER", "aot_eager"),
        ("rdzv_backend", "statc", "static"),
        ("log_level", "waring", "warning"),
        ("deepspeed_multinode_launcher", "openmpii", "openmpi"),
    ],
)
def test_a_slip_in_a_known_word_is_refused_where_other_words_may_be_too(
    name: str, word: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig(**{name: word})
    assert error.value.what == f"{name}={word!r} is not known"
    assert error.value.fix == f"pass {name}={meant!r}"


def test_other_words_are_taken_where_they_may_be() -> None:
    for name, word in (
        ("dynamo_backend", "torch_tensorrt"),
        ("dynamo_backend", "INDUCTOR"),
        ("dynamo_mode", "max-autotune-no-cudagraphs"),
        ("parallelism_config_sp_attn_implementation", "flash_attention_4"),
        ("rdzv_backend", "mine"),
    ):
        assert RunConfig(**{name: word})[name] == word
