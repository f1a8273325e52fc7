"""One process or many, the numbers agree: losses, gradient norms and parameters."""

from __future__ import annotations

import pytest

from notebook_accel import notebook_launcher
from tests.support.ranks import run_ranks


def trains_every_way():
    """Train on 26 rows for two epochs in every combination; give losses, norms and parameters.

    The effective batch is 8: one process accumulates two micro-batches of 4 (or takes 8 at once),
    two processes take 4 each. 26 rows make a short last window.
    """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from notebook_accel import Accelerator

    def train(batch_size, accumulate, clip, rows, shuffle):
        accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
        torch.manual_seed(0)
        x = torch.randn(rows, 4)
        y = (x[:, :1] + x[:, 1:2]).tanh()
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=shuffle)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses, norms, window = [], [], []
        for _ in range(2):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                    window.append(accelerator.gather(loss).mean().item())
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                        norms.append(norm.item())
                        losses.append(sum(window) / len(window))
                        window.clear()
                    optimizer.step()
                    optimizer.zero_grad()
        state = accelerator.get_state_dict(model)
        return {
            "losses": losses,
            "norms": norms,
            "weights": [v for one in state.values() for v in one.flatten().tolist()],
        }

    size = Accelerator(cpu=True).num_processes
    said = {}
    for clip in (0.1, 1e9):
        for rows in (24, 28):
            for shuffle in (False, True):
                name = f"clip {clip} rows {rows} shuffle {shuffle}"
                said[name] = train(4, 2 // size if size <= 2 else 1, clip, rows, shuffle)
                if size == 1:
                    said["big " + name] = train(8, 1, clip, rows, shuffle)
    # Four micro-batches of 2 on one process, two on two processes, with a short last window.
    said["accumulating"] = train(2, 4 // size, 0.1, 20, True)
    return said


@pytest.fixture(scope="module")
def runs() -> dict[int, dict]:
    return {n: run_ranks(trains_every_way, n)[0] for n in (1, 2)}


SETTINGS = [
    f"clip {clip} rows {rows} shuffle {shuffle}"
    for clip in (0.1, 1e9)
    for rows in (24, 28)
    for shuffle in (False, True)
]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("what", ["losses", "norms", "weights"])
def test_accumulation_equals_the_big_batch(runs: dict, name: str, what: str) -> None:
    assert runs[1][name][what] == pytest.approx(runs[1]["big " + name][what], abs=1e-5)


@pytest.mark.parametrize("name", [one for one in SETTINGS if "rows 24" in one] + ["accumulating"])
@pytest.mark.parametrize("what", ["losses", "norms", "weights"])
def test_two_processes_equal_one_that_accumulates(runs: dict, name: str, what: str) -> None:
    assert runs[2][name][what] == pytest.approx(runs[1][name][what], abs=1e-5)


def test_clipping_really_clips(runs: dict) -> None:
    clipped, free = (runs[1][f"clip {clip} rows 24 shuffle False"] for clip in (0.1, 1e9))
    assert clipped["norms"][0] == pytest.approx(free["norms"][0])
    assert max(free["norms"]) > 0.1
    assert clipped["weights"] != pytest.approx(free["weights"], abs=1e-5)


def pads_the_tail():
    """Two or four ranks on 10 rows: the tail is completed from the start of the pass."""
    import itertools

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator, GradScalerKwargs

    def train(precision, clip):
        scale = GradScalerKwargs(init_scale=256.0)
        accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=[scale])
        size = accelerator.num_processes
        rows = torch.arange(10.0).view(-1, 1) / 10
        if size == 1:  # the same padded list of rows, read by one process
            rows = torch.cat([rows, rows[:6]])
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(rows, batch_size=8 // size)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        norms = []
        for _ in range(3):
            for x in loader:
                optimizer.zero_grad()
                accelerator.backward((model(x) - 1).square().mean())
                norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                optimizer.step()
        return [*norms, *(v.item() for v in accelerator.get_state_dict(model).values())]

    ways = itertools.product(("no", "bf16", "fp16"), (0.5, 1e9))
    return {f"{precision}, {clip}": train(precision, clip) for precision, clip in ways}


def test_uneven_data_equals_one_process_on_the_same_padded_list() -> None:
    """In every precision, clipped or not."""
    alone, *together = (
        list(notebook_launcher(pads_the_tail, (), n, device="cpu").values) for n in (1, 2, 4)
    )
    tolerances = {"no": 1e-6, "bf16": 1e-2, "fp16": 2e-3}
    for way, expected in alone[0].items():
        for ranks in together:
            near = pytest.approx(expected, abs=tolerances[way.split(",")[0]])
            assert all(one[way] == near for one in ranks), way
    assert alone[0]["no, 0.5"] != pytest.approx(alone[0]["no, 1000000000.0"], abs=1e-2)
    assert alone[0]["no, 0.5"] != pytest.approx(alone[0]["bf16, 0.5"], abs=1e-6)
