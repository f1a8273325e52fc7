"""However gradients travel between ranks (fp16, bf16, PowerSGD), the training is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import FSDP, Accelerator, DistributedDataParallelKwargs, notebook_launcher
from notebook_accel.errors import ConfigError
from notebook_accel.strategies.gradient_hooks import compress_gradients

# PowerSGD is exact before it starts, and where its rank is that of the matrices: those of the
# layers have rank 4 or less, the square of all 49 parameters 7.
FULL = {"start_powerSGD_iter": 2, "matrix_approximation_rank": 4, "min_compression_rate": 0.1}
HOOKS: dict[str, tuple[dict[str, Any], float]] = {
    "fp16": ({"comm_hook": "fp16"}, 1e-3),
    "bf16": ({"comm_hook": "bf16"}, 5e-3),
    "PowerSGD, not started": ({"comm_hook": "power_sgd"}, 1e-5),
    "PowerSGD, full rank": ({"comm_hook": "power_sgd", "comm_state_option": FULL}, 1e-4),
    "PowerSGD in fp16": (
        {"comm_hook": "power_sgd", "comm_wrapper": "fp16", "comm_state_option": FULL},
        5e-3,
    ),
    "batched PowerSGD, not started": ({"comm_hook": "batched_power_sgd"}, 1e-5),
    "batched PowerSGD, full rank": (
        {
            "comm_hook": "batched_power_sgd",
            "comm_state_option": {"start_powerSGD_iter": 2, "matrix_approximation_rank": 8},
        },
        1e-4,
    ),
}
LOW_RANK = {
    "PowerSGD, rank 1": {
        "comm_hook": "power_sgd",
        "comm_state_option": {**FULL, "matrix_approximation_rank": 1},
    },
    "batched PowerSGD, rank 1": {
        "comm_hook": "batched_power_sgd",
        "comm_state_option": {"start_powerSGD_iter": 2, "matrix_approximation_rank": 1},
    },
}
NUM_UPDATES = 12


def trains_by_every_hook() -> dict[str, list[float]]:
    def train(how: dict, accumulate: int) -> list[float]:
        accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            kwargs_handlers=[DistributedDataParallelKwargs(**how)],
        )
        torch.manual_seed(0)
        x = torch.randn(32, 4)
        y = (x[:, :1] + x[:, 1:2]).tanh()
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        batch_size = 8 // accelerator.num_processes // accumulate
        loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses, norms = [], []
        for _ in range(3):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                    losses.append(accelerator.reduce(loss, "mean").item())
                    if accelerator.sync_gradients:
                        norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                    optimizer.step()
                    optimizer.zero_grad()
        means = torch.tensor(losses).view(-1, accumulate).mean(1).tolist()
        weights = [v for p in model.parameters() for v in p.flatten().tolist()]
        return [*means, *norms, *weights]

    hooks = {"none": {}, **{name: how for name, (how, _) in HOOKS.items()}, **LOW_RANK}
    return {
        f"{name} x {accumulate}": train(how, accumulate)
        for name, how in hooks.items()
        for accumulate in (1, 2)
    }


@pytest.fixture(scope="module")
def runs() -> dict[int, dict[str, list[float]]]:
    found = {}
    for size in (1, 2):
        every = list(notebook_launcher(trains_by_every_hook, (), size, device="cpu").values)
        assert all(one == every[0] for one in every)
        found[size] = every[0]
    return found


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_trains_as_one_process_does(runs: Any, name: str, accumulate: int) -> None:
    alone = runs[1]["none x 1"]
    assert runs[2][f"{name} x {accumulate}"] == pytest.approx(alone, abs=HOOKS[name][1])


def test_hooks_really_change_what_travels(runs: Any) -> None:
    """Else their agreement would say nothing."""
    plain = runs[2]["none x 1"]
    for name in ("fp16", "bf16", "PowerSGD in fp16", *LOW_RANK):
        assert runs[2][f"{name} x 1"] != pytest.approx(plain, abs=1e-6), name
    assert runs[2]["PowerSGD, full rank x 1"] != plain
    assert runs[2]["batched PowerSGD, full rank x 1"] != plain


@pytest.mark.parametrize("name", LOW_RANK)
def test_a_low_rank_is_not_exact_but_trains(runs: Any, name: str) -> None:
    losses = runs[2][f"{name} x 1"][:NUM_UPDATES]
    assert losses[:2] == pytest.approx(runs[1]["none x 1"][:2], abs=1e-5)
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])


@pytest.mark.parametrize(
    ("options", "says"),
    [({"nonsense": 1}, "'nonsense'"), ({"start_powerSGD_iter": 1}, "start_powerSGD_iter` > 1")],
)
def test_options_that_make_no_state_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        compress_gradients(Any, "power_sgd", options=options)
    assert error.value.what == f"comm_state_option={options!r} makes no PowerSGDState"
    assert says in error.value.why
    assert "matrix_approximation_rank=2" in error.value.fix


@pytest.mark.parametrize(
    ("hook", "wrapper", "said"),
    [("fp4", "no", "comm_hook='fp4'"), ("power_sgd", "fp4", "comm_wrapper='fp4'")],
)
def test_a_word_that_is_no_form_is_refused(hook: str, wrapper: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compress_gradients(Any, hook, wrapper)


def trains_shards() -> dict[str, list[float]]:
    size = Accelerator(cpu=True).num_processes
    if size == 1:
        return {"alone": train_shards(None, "no")}
    wishes = {"shards": FSDP()} if size == 2 else {"copies of shards": FSDP(replicas=2)}
    return {
        f"{name}, {hook}": train_shards(wish, hook)
        for name, wish in wishes.items()
        for hook in ("no", "fp16", "bf16")
    }


def train_shards(wish: FSDP | None, hook: str) -> list[float]:
    accelerator = Accelerator(
        cpu=True, strategy=wish, kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=hook)]
    )
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(x, y), batch_size=8 // accelerator.num_processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss, "mean").item())
    state = accelerator.get_state_dict(model)
    return [*losses, *(v for one in state.values() for v in one.flatten().tolist())]


def test_shards_are_averaged_in_the_numbers_of_the_hook() -> None:
    alone = notebook_launcher(trains_shards, (), 1, device="cpu")[0]["alone"]
    for size, name in ((2, "shards"), (4, "copies of shards")):
        found = notebook_launcher(trains_shards, (), size, device="cpu")[0]
        assert found[f"{name}, no"] == pytest.approx(alone, abs=1e-6)
        for hook, tolerance in (("fp16", 1e-3), ("bf16", 1e-2)):
            one = found[f"{name}, {hook}"]
            assert one == pytest.approx(alone, abs=tolerance), (name, hook)
            assert one != pytest.approx(alone, abs=1e-7), (name, hook)


def test_a_hook_on_one_process_changes_nothing() -> None:
    handler = DistributedDataParallelKwargs(comm_hook="power_sgd", comm_state_option=FULL)
    assert Accelerator(cpu=True, kwargs_handlers=[handler]).num_processes == 1
