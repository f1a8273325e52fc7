"""save_state and load_state among ranks: what is kept, for whom, and what is said."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import (
    Accelerator,
    CheckpointError,
    ConfigError,
    load_weights,
    notebook_launcher,
    without_guards,
)
from notebook_accel.config.project import ProjectConfiguration
from tests.support.ranks import ROOT, run_ranks


class Counter:
    """An object that a person registers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


def build(seed: int, **kwargs: Any) -> tuple[Any, ...]:
    """An Accelerator with a tied model, AdamW, a schedule and a loader."""
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, **kwargs)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    loader = DataLoader(torch.arange(12) % 6, batch_size=2, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, loader)


def train(accelerator: Any, model: Any, optimizer: Any, schedule: Any, loader: Any) -> None:
    for x in loader:
        accelerator.backward(nn.functional.cross_entropy(model(x), x))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def everything(accelerator: Any, model: Any, optimizer: Any, schedule: Any, loader: Any) -> Any:
    """All that a checkpoint must bring back, as plain values."""
    state = {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}
    inner = optimizer.state_dict()["state"]
    moments = {i: {k: v.tolist() for k, v in one.items()} for i, one in inner.items()}
    return state, moments, schedule.state_dict(), accelerator._clock.step


def of(run: Any, n: int) -> list[Any]:
    return [run[rank] for rank in range(n)]


# ── one launch, many looks ────────────────────────────────────────────────────────────────────


def saves_and_loads(folder: str) -> dict[str, Any]:
    """Two ranks train, save in all ways, and load into fresh objects."""
    said: dict[str, Any] = {}
    parts = build(0)
    accelerator, model = parts[:2]
    rank = accelerator.process_index
    train(*parts)
    torch.manual_seed(100 + rank)  # from here on every rank draws its own numbers
    counter, shared = Counter(5 + rank), Counter(7 + rank)
    accelerator.register_for_checkpointing(counter)
    accelerator.register_for_checkpointing(shared, on_each_rank=False)
    said["returned"] = accelerator.save_state(folder)
    said["before"], said["drawn"] = everything(*parts), torch.rand(3).tolist()

    other = build(1)
    accelerator2, model2 = other[:2]
    back, alike = Counter(0), Counter(0)
    accelerator2.register_for_checkpointing(back, alike)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is derived, nothing is said
        accelerator2.load_state(folder)
    said["drawn again"] = torch.rand(3).tolist()
    said["after"] = everything(*other)
    said["custom"] = (back.n, alike.n)
    plain = accelerator2.unwrap_model(model2)
    said["tied"] = plain.head.weight is plain.embedding.weight
    train(*parts)  # both go on alike (their counts of steps too)
    train(*other)
    said["steps"] = (accelerator._clock.step, accelerator2._clock.step)

    said["keys"] = sorted(accelerator.get_state_dict(model))
    said["own keys"] = sorted(accelerator.get_state_dict(model, unwrap=False))
    accelerator.save_model(model, f"{folder}/export")
    accelerator.save_model(model, f"{folder}/unsafe", safe_serialization=False)
    accelerator.save(accelerator.get_state_dict(model), f"{folder}/one.safetensors", True)
    accelerator.save({"rank": rank}, f"{folder}/one.pt")
    if accelerator.is_main_process:
        with without_guards("wrapped-save"):
            torch.save(model.state_dict(), f"{folder}/wrapped.pt")
    said["compiled"] = compiled_names(accelerator, folder)
    said["weights"] = everything(*parts)[0]
    said["should save"] = accelerator.should_save_model
    return said


def compiled_names(accelerator: Any, folder: str) -> list[list[str]]:
    """The names under which compiled and partly compiled models are given and exported."""
    parts = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2))
    whole = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), backend="eager")
    names = []
    for number, model in enumerate(accelerator.prepare(parts, whole)):
        names.append(sorted(accelerator.get_state_dict(model)))
        accelerator.save_model(model, f"{folder}/compiled{number}")
        accelerator.unwrap_model(model)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "new" / "folder"


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    return of(notebook_launcher(saves_and_loads, (str(folder),), 2, device="cpu"), 2)


def test_all_state_comes_back_on_every_rank(two: list[dict[str, Any]]) -> None:
    for said in two:
        assert said["after"] == said["before"]
        assert said["before"][3] == 3
        assert said["steps"] == (6, 6)


def test_each_rank_draws_its_own_numbers_again(two: list[dict[str, Any]]) -> None:
    assert [said["drawn again"] for said in two] == [said["drawn"] for said in two]


def test_each_rank_gets_its_own_registered_objects_back(two: list[dict[str, Any]]) -> None:
    """E3: two ranks that hold 5 and 6 get 5 and 6 back; shared ones are the main rank's."""
    assert [said["custom"] for said in two] == [(5, 7), (6, 7)]


def test_tied_weights_are_still_tied_and_stored_once(
    two: list[dict[str, Any]], folder: Path
) -> None:
    """SV01."""
    assert all(said["tied"] for said in two)
    assert list(load_file(folder / "model.safetensors")) == ["embedding.weight"]


def test_the_files_have_accelerates_names(two: list[dict[str, Any]], folder: Path) -> None:
    assert two[0]["returned"] == two[1]["returned"] == str(folder)
    expected = {"model.safetensors", "optimizer.bin", "scheduler.bin", "checkpoint.json"}
    expected |= {"random_states_0.pkl", "random_states_1.pkl"}
    expected |= {"custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl"}
    assert expected <= {path.name for path in folder.iterdir()}


def test_names_carry_no_wrappers(two: list[dict[str, Any]], folder: Path) -> None:
    """SV07."""
    assert two[0]["keys"] == ["embedding.weight", "head.weight"]
    assert two[0]["own keys"] == ["module.embedding.weight", "module.head.weight"]
    for file in ("export/model.safetensors", "unsafe/pytorch_model.bin", "one.safetensors"):
        plain = Tied()
        load_weights(plain, folder / file)  # strict
        assert plain.head.weight.tolist() == two[0]["weights"]["head.weight"]


@pytest.mark.parametrize("number", [0, 1])
def test_compiled_models_have_plain_names(
    two: list[dict[str, Any]], folder: Path, number: int
) -> None:
    """PR04: partly compiled, and compiled before prepare."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert all(said["compiled"][number] == sorted(plain.state_dict()) for said in two)
    plain.load_state_dict(load_file(folder / f"compiled{number}" / "model.safetensors"))


def test_a_wrapped_models_state_dict_loads_with_a_note(
    two: list[dict[str, Any]], folder: Path
) -> None:
    plain = Tied()
    with pytest.warns(UserWarning, match="2 saved names carry a wrapper's prefix"):
        load_weights(plain, folder / "wrapped.pt")
    assert plain.head.weight.tolist() == two[0]["weights"]["head.weight"]


def test_the_main_rank_writes(two: list[dict[str, Any]], folder: Path) -> None:
    assert [said["should save"] for said in two] == [True, False]
    assert torch.load(folder / "one.pt") == {"rank": 0}


def loads_elsewhere(folder: str) -> dict[str, Any]:
    parts = build(2)
    accelerator = parts[0]
    counters = Counter(0), Counter(0)
    accelerator.register_for_checkpointing(*counters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.load_state(folder)
    drawn = torch.rand(3).tolist()
    accelerator.load_state(folder)
    return {
        "all": everything(*parts),
        "custom": [one.n for one in counters],
        "drawn": drawn,
        "drawn again": torch.rand(3).tolist(),
        "warned": [str(one.message) for one in caught if "derived" in str(one.message)],
    }


@pytest.mark.parametrize("n", [1, 3])
def test_another_number_of_ranks_loads_it(two: list[dict[str, Any]], folder: Path, n: int) -> None:
    ranks = of(notebook_launcher(loads_elsewhere, (str(folder),), n, device="cpu"), n)
    assert all(said["all"][0:3] == two[0]["before"][0:3] for said in ranks)
    assert [said["custom"] for said in ranks] == [[5, 7], [6, 7], [5, 7]][:n]
    assert [said["drawn"] for said in ranks[:2]] == [said["drawn"] for said in two[:n]]
    assert [said["drawn"] for said in ranks] == [said["drawn again"] for said in ranks]
    assert len({tuple(said["drawn"]) for said in ranks}) == n  # a rank without numbers has its own
    assert [len(said["warned"]) for said in ranks] == [n // 3, 0, 0][:n]
    if n == 3:
        assert "no random numbers of rank 2 " in ranks[0]["warned"][0]


# ── other ways to call ────────────────────────────────────────────────────────────────────────


def saves_on_the_main_rank_alone(folder: str) -> Any:
    parts = build(0)
    accelerator = parts[0]
    train(*parts)
    if accelerator.is_main_process:
        accelerator.save_state(folder)
    before = everything(*parts)
    other = build(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other[0].load_state(folder)  # no barrier between
    said = [str(one.message) for one in caught if "derived" in str(one.message)]
    return everything(*other) == before, torch.rand(1).item(), said


def test_saved_by_the_main_rank_alone_all_ranks_load_it_without_a_barrier(tmp_path: Path) -> None:
    run = notebook_launcher(saves_on_the_main_rank_alone, (str(tmp_path / "a"),), 2, device="cpu")
    (same0, drawn0, said0), (same1, drawn1, said1) = of(run, 2)
    assert same0 and same1 and drawn0 != drawn1
    assert len(said0) == 1 and "rank 1 " in said0[0] and said1 == []


def saves_in_the_background(root: str) -> Any:
    config = ProjectConfiguration(root, automatic_checkpoint_naming=True, total_limit=2)
    parts = build(0, project_config=config)
    accelerator, model = parts[:2]
    train(*parts)
    before = everything(*parts)
    places = [accelerator.save_state(async_save=True) for _ in range(4)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # what is being written is a copy
    accelerator.load_state()
    assert everything(*parts) == before
    names = sorted(path.name for path in Path(root, "checkpoints").iterdir())
    resumed = build(
        1, project_dir=root, project_config=ProjectConfiguration(automatic_checkpoint_naming=True)
    )
    resumed[0].load_state()
    last = resumed[0].save_state(async_save=True)
    accelerator.end_training()  # of another Accelerator: this one's write is waited for at the end
    return places, names, resumed[0].save_iteration, last


def test_saving_in_the_background_copies_first_and_counts_on_after_a_resume(
    tmp_path: Path,
) -> None:
    run = notebook_launcher(saves_in_the_background, (str(tmp_path),), 2, device="cpu")
    places, names, iteration, last = run[0]
    assert places == [str(tmp_path / "checkpoints" / f"checkpoint_{i}") for i in range(4)]
    assert names == ["checkpoint_2", "checkpoint_3"]
    assert iteration == 5 and last.endswith("checkpoint_4")
    assert (Path(last) / "checkpoint.json").exists()


def test_saves_in_the_background_use_the_same_memory_and_hold_what_was_then(
    tmp_path: Path,
) -> None:
    parts = build(0)
    accelerator = parts[0]
    moments, places = [], []
    for number in range(3):
        train(*parts)
        accelerator.save_state(tmp_path / str(number), async_save=True)
        moments.append(everything(*parts))
        places.append({one.data_ptr() for one in accelerator._memory})
    for number in range(3):
        accelerator.load_state(tmp_path / str(number))
        assert everything(*parts) == moments[number]
    assert places[0] == places[1] == places[2]
    accelerator.free_memory()
    assert accelerator._memory == []


def test_an_error_in_the_background_comes_with_the_next_save(tmp_path: Path) -> None:
    parts = build(0)
    accelerator = parts[0]
    accelerator.save_state(tmp_path / "good")
    (tmp_path / "bad" / "checkpoint.json").mkdir(parents=True)  # cannot be replaced by a file
    accelerator.save_state(tmp_path / "bad", async_save=True)
    with pytest.raises(CheckpointError, match="the last checkpoint was not written") as caught:
        accelerator.save_state(tmp_path / "good")
    assert "async_save" in str(caught.value) and isinstance(caught.value.__cause__, OSError)
    accelerator.save_state(tmp_path / "good")  # said once
    accelerator.load_state(tmp_path / "good")


# ── one process ───────────────────────────────────────────────────────────────────────────────


def test_hooks_may_take_over_saving_and_loading_models(tmp_path: Path) -> None:
    parts = build(0)
    accelerator, model = parts[:2]
    seen = []

    def save(models: list, weights: list, output_dir: str) -> None:
        seen.append((list(models), output_dir))
        while weights:
            torch.save(weights.pop(), f"{output_dir}/mine.pt")

    def load(models: list, input_dir: str) -> None:
        while models:
            models.pop().load_state_dict(torch.load(f"{input_dir}/mine.pt"))

    handles = [
        accelerator.register_save_state_pre_hook(save),
        accelerator.register_load_state_pre_hook(load),
    ]
    train(*parts)
    accelerator.save_state(tmp_path / "a")
    before = everything(*parts)
    train(*parts)
    accelerator.load_state(tmp_path / "a")
    assert everything(*parts) == before
    assert not (tmp_path / "a" / "model.safetensors").exists()
    assert seen == [([accelerator.unwrap_model(model)], str(tmp_path / "a"))]
    for handle in handles:
        handle.remove()
    accelerator.save_state(tmp_path / "b")
    assert len(seen) == 1
    with pytest.raises(CheckpointError, match="no weights for model 0") as caught:
        accelerator.load_state(tmp_path / "a")
    assert "hook" in str(caught.value)


def test_several_models_and_optimizers_come_back_in_order(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    models = [nn.Linear(1, 1) for _ in range(3)]
    rates = [0.1, 0.2]
    optimizers = [
        torch.optim.SGD(one.parameters(), lr) for one, lr in zip(models, rates, strict=False)
    ]
    _ = accelerator.prepare(*models, *optimizers)
    before = [one.weight.item() for one in models]
    accelerator.save_state(tmp_path, safe_serialization=False)
    assert {"pytorch_model.bin", "pytorch_model_2.bin", "optimizer_1.bin"} <= {
        path.name for path in tmp_path.iterdir()
    }
    for one in [*models, *optimizers]:
        if isinstance(one, nn.Module):
            nn.init.zeros_(one.weight)
        else:
            one.param_groups[0]["lr"] = 9.0
    accelerator.load_state(tmp_path)
    assert [one.weight.item() for one in models] == before
    assert [one.param_groups[0]["lr"] for one in optimizers] == rates


class Warmup:
    """A rate as an object with a state, as LambdaLR saves it."""

    def __init__(self) -> None:
        self.factor = 0.5

    def __call__(self, step: int) -> float:
        return self.factor


lr = torch.optim.lr_scheduler
SCHEDULES: dict[str, Any] = {
    "OneCycle": lambda o: lr.OneCycleLR(o, 0.3, total_steps=20),
    "Cyclic": lambda o: lr.CyclicLR(o, 0.1, 0.2, cycle_momentum=False),
    "Sequential": lambda o: lr.SequentialLR(o, [lr.LinearLR(o), lr.ExponentialLR(o, 0.9)], [2]),
    "Chained": lambda o: lr.ChainedScheduler([lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)]),
    "Plateau": lambda o: lr.ReduceLROnPlateau(o, patience=0),
    "MultiStep": lambda o: lr.MultiStepLR(o, [1, 2]),
    "WarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 2),
    "lambda": lambda o: lr.LambdaLR(o, lambda step: 1 / (step + 1)),
    "object": lambda o: lr.LambdaLR(o, Warmup()),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_kind_of_schedule_comes_back_from_plain_data(tmp_path: Path, name: str) -> None:
    rates = []
    for seed in (0, 1):
        accelerator = Accelerator(cpu=True)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        schedule = SCHEDULES[name](optimizer)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        if seed == 0:
            for _ in range(3):
                optimizer.step()
                schedule.step(*[1.0] if name == "Plateau" else [])
            accelerator.save_state(tmp_path)
        else:
            accelerator.load_state(tmp_path)
        optimizer.step()
        schedule.step(*[1.0] if name == "Plateau" else [])
        rates.append((optimizer.param_groups[0]["lr"], schedule.state_dict().get("last_epoch")))
    assert rates[0] == rates[1]


def test_the_loss_scaler_comes_back(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.prepare(nn.Linear(1, 1))
    accelerator._engine.precision.scaler.load_state_dict(
        {
            "scale": 256.0,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": 10,
            "_growth_tracker": 3,
        }
    )
    accelerator.save_state(tmp_path)
    assert (tmp_path / "scaler.pt").exists()
    other = Accelerator(cpu=True, mixed_precision="fp16")
    other.prepare(nn.Linear(1, 1))
    other.load_state(tmp_path)
    assert other._engine.precision.scaler.state_dict()["scale"] == 256.0
    assert other._engine.precision.scaler.state_dict()["_growth_tracker"] == 3


def test_a_run_goes_on_from_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    config = ProjectConfiguration(automatic_checkpoint_naming=True)
    parts = build(0, project_dir=tmp_path, project_config=config)
    for _ in range(2):
        parts[0].save_state()
    (tmp_path / "checkpoints" / "checkpoint_2").mkdir()
    (tmp_path / "checkpoints" / "checkpoint_2" / "model.safetensors.ab.new").write_text("")
    config = ProjectConfiguration(automatic_checkpoint_naming=True)
    parts = build(1, project_dir=tmp_path, project_config=config)
    with pytest.raises(CheckpointError, match="checkpoint_0 exists already"):
        parts[0].save_state()
    with pytest.warns(UserWarning, match="checkpoint_2 is incomplete"):
        parts[0].load_state()
    assert parts[0].save_iteration == 3
    parts[0].save_iteration = 2
    parts[0].save_state()  # over the broken one
    parts[0].load_state()
    assert parts[0].save_iteration == 3


def test_an_explicit_folder_is_obeyed_under_automatic_naming(tmp_path: Path) -> None:
    config = ProjectConfiguration(automatic_checkpoint_naming=True)
    parts = build(0, project_dir=tmp_path, project_config=config)
    assert parts[0].save_state(tmp_path / "best") == str(tmp_path / "best")
    assert parts[0].save_iteration == 0
    parts[0].save_state(tmp_path / "best")  # again and again


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: a.save_state(), r"save_state\(\) got no folder"),
        (lambda a: a.load_state(), r"load_state\(\) got no folder"),
        (lambda a: a.load_state("nowhere"), "there is no checkpoint folder nowhere"),
        (lambda a: a.load_state("nowhere", map_location="moon"), "map_location='moon'"),
        (lambda a: a.load_state("nowhere", strikt=True), r"load_state\(\) got strikt"),
        (lambda a: a.save_state("nowhere", asynk=True), r"save_state\(\) got asynk"),
        (lambda a: a.register_for_checkpointing(5, Counter(1)), "got int"),
        (lambda a: ProjectConfiguration(total_limit=0), "total_limit=0"),
    ],
)
def test_calls_that_cannot_be_are_explained(call: Any, said: str) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=said):
        call(Accelerator(cpu=True))


def test_automatic_naming_without_a_project_is_explained() -> None:
    config = ProjectConfiguration(automatic_checkpoint_naming=True)
    with pytest.raises(ConfigError, match="needs a project_dir"):
        Accelerator(cpu=True, project_config=config).save_state()


def test_other_numbers_of_objects_are_counted(tmp_path: Path) -> None:
    parts = build(0)
    parts[0].register_for_checkpointing(Counter(1))
    parts[0].save_state(tmp_path)
    with pytest.raises(CheckpointError, match="holds 1 registered objects; this run registered 0"):
        build(0)[0].load_state(tmp_path)
    other = build(1)
    other[0].register_for_checkpointing(Counter(1))
    _late = other[0].prepare(torch.optim.SGD(other[1].parameters()))
    before = everything(*other)
    with pytest.raises(CheckpointError, match="holds 1 optimizers; this run prepared 2"):
        other[0].load_state(tmp_path)
    assert everything(*other) == before  # refused before anything was loaded


def test_a_run_that_only_evaluates_loads_the_model_of_a_training_checkpoint(tmp_path: Path) -> None:
    parts = build(0)
    parts[0].save_state(tmp_path)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Tied())
    accelerator.load_state(tmp_path)
    saved, loaded = (one.get_state_dict(of_it) for one, of_it in (parts[:2], (accelerator, model)))
    assert {k: v.tolist() for k, v in loaded.items()} == {k: v.tolist() for k, v in saved.items()}


def test_saving_inside_a_window_is_warned_about(tmp_path: Path) -> None:
    accelerator, model, optimizer, _, loader = build(0, gradient_accumulation_steps=2)
    for number, x in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            optimizer.step()
            optimizer.zero_grad()
        if number == 0:
            with pytest.warns(UserWarning, match="inside an accumulation window"):
                accelerator.save_state(tmp_path)
        elif number == 1:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                accelerator.save_state(tmp_path)


def test_loaders_that_do_not_match_begin_a_new_pass_and_say_so(tmp_path: Path) -> None:
    accelerator = build(0)[0]
    accelerator.save_state(tmp_path)
    parts = build(0)
    _ = parts[0].prepare(DataLoader(torch.arange(4), batch_size=2))
    with pytest.warns(UserWarning, match="knows 1 loaders, 2 were prepared"):
        parts[0].load_state(tmp_path)
    assert len(list(parts[4])) == 6


def test_machines_without_a_common_disk_each_keep_their_own(tmp_path: Path) -> None:
    """Two ranks that think they are on two machines, each with a folder of its own."""
    body = f"""
def main():
    import os
    rank = os.environ["RANK"]
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    import torch, warnings
    from notebook_accel import Accelerator
    from notebook_accel.config.project import ProjectConfiguration
    warnings.simplefilter("error")
    accelerator = Accelerator(project_config=ProjectConfiguration(save_on_each_node=True))
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    folder = {str(tmp_path)!r} + "/" + rank
    torch.manual_seed(int(rank))
    accelerator.save_state(folder)
    drawn = torch.rand(1).item()
    accelerator.load_state(folder)
    same = torch.rand(1).item() == drawn
    accelerator.end_training()
    return same, accelerator.should_save_model, sorted(os.listdir(folder))
"""
    names = ["checkpoint.json", "model.safetensors"]
    assert run_ranks(body, 2) == [
        [True, True, [*names, f"random_states_{rank}.pkl"]] for rank in range(2)
    ]


def test_a_script_that_ends_shows_why_its_last_checkpoint_was_not_written(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").mkdir()  # cannot be replaced by a file
    script = f"""
from torch import nn
from notebook_accel import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.prepare(nn.Linear(1, 1))
accelerator.save_state({str(tmp_path)!r}, async_save=True)
print("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stdout == "the end\n"
    assert "the last checkpoint was not written: IsADirectoryError" in done.stderr


def test_a_partial_model_loads_when_it_is_not_strict(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2, bias=False))
    accelerator.save_state(tmp_path)
    other = Accelerator(cpu=True)
    other.prepare(nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="do not fit Linear"):
        other.load_state(tmp_path)
    other.load_state(tmp_path, strict=False)


def test_a_folder_that_accelerate_wrote_is_loaded(tmp_path: Path) -> None:
    """Made here as Accelerate 1.15 leaves it: its names and keys, no manifest."""
    import random

    import numpy

    parts = build(0)
    accelerator, model, optimizer, schedule, _ = parts
    train(*parts)
    accelerator.save_model(model, tmp_path)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.bin")
    torch.save(schedule.state_dict(), tmp_path / "scheduler.bin")
    torch.save({"n": 5}, tmp_path / "custom_checkpoint_0.pkl")
    for rank in range(2):
        random_states = {
            "step": 6,
            "random_state": random.getstate(),
            "numpy_random_seed": numpy.random.get_state(),
            "torch_manual_seed": torch.get_rng_state(),
        }
        torch.save(random_states, tmp_path / f"random_states_{rank}.pkl")
    before = everything(*parts)
    drawn = torch.rand(1).item(), random.random(), numpy.random.rand()
    other = build(1)
    counter = Counter(0)
    other[0].register_for_checkpointing(counter)
    other[0].load_state(tmp_path)
    assert everything(*other)[:3] == before[:3]
    assert counter.n == 5
    assert drawn == (torch.rand(1).item(), random.random(), numpy.random.rand())
