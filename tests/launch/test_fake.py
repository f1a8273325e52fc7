"""Layouts of many ranks on one CPU: one rank is played, and what it shows is that of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import (
    DDP,
    FSDP,
    Accelerator,
    ParallelismConfig,
    TensorParallel,
    notebook_launcher,
)
from notebook_accel.errors import ConfigError
from notebook_accel.launch.fake import plan_fake
from notebook_accel.launch.plan import plan
from notebook_accel.ui.runs import RunList
from tests.strategies.test_measure import Net, loss_fn
from tests.support import launches


def loop(folder: str = "", **how: Any) -> dict[str, Any]:
    """An ordinary loop, which looks at its loss, measures, saves and loads."""
    torch.manual_seed(0)
    accelerator = Accelerator(**how)
    model = Net(depth=2)
    words = torch.randint(0, 50, (256, 3))
    loader = DataLoader(TensorDataset(words, words), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for x_BT, y_BT in loader:
        loss = loss_fn(model(x_BT), y_BT)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
        accelerator.save_model(model, folder)
    with torch.no_grad():
        guesses = accelerator.gather_for_metrics(model(x_BT).argmax(-1))
    return {
        "place": (accelerator.process_index, accelerator.num_processes),
        "batches": len(losses),
        "guesses": tuple(guesses.shape),
        "model": model,
    }


def played(wish: Any = None, device: str = "fake", size: int = 64, **more: Any) -> Any:
    how = more.pop("kwargs", {})
    return notebook_launcher(
        loop, (), size, device=device, strategy=wish, kwargs=how, timeout_s=100, **more
    )


def test_a_plain_loop_runs_as_one_rank_of_64_and_tells_what_it_holds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    run = played(FSDP(), kwargs={"folder": str(folder)})
    out = capfd.readouterr().out
    assert len(run) == 1
    assert run[0]["place"] == (0, 64)
    assert run[0]["batches"] == 256 // 4 // 64
    assert run[0]["guesses"] == (4 * 64, 3)
    assert isinstance(run[0]["model"], nn.Module)
    assert "Losses, metrics and times are not those of a real run, and nothing is saved" in out
    named = "64 fake ranks (rank 0 is played on the CPU; fake: numbers mean nothing)"
    assert named in out and named in repr(run) and named in run.record.about.title
    assert (
        named in repr(RunList([run.record]))
        and named in run.report(tmp_path / "run.html").read_text()
    )
    for line in (
        "rank 0 of 64 played, after its first update",
        "mesh        dp_shard=64 = 64 ranks",
        "model       Net: 3 parts, each sharded over 64 ranks",
        "4 a reader x 64 readers x 1 accumulated = 256 samples an update",
        "1 batch of this reader",
        f"note: a fake run saves nothing: {folder}",
        "note: a fake run loads nothing",
    ):
        assert line in out, line
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize(
    ("wish", "device", "mesh"),
    [
        (DDP(), "fake", "dp_replicate=64 = 64 ranks"),
        (FSDP(replicas="machines"), "fake:63", "dp_replicate=8 x dp_shard=8 = 64 ranks"),
        (TensorParallel(size=4), "fake:7", "dp_shard=16 x tp=4 = 64 ranks"),
    ],
)
def test_any_rank_of_any_layout_can_be_played(
    wish: Any, device: str, mesh: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = played(wish, device, 8, num_nodes=8)
    out = capfd.readouterr().out
    assert run[0]["place"] == (int(device.partition(":")[2] or 0), 64)
    assert f"mesh        {mesh}" in out


class Headed(Net):
    """A model of transformers' kind, as far as its heads go."""

    class config:
        num_attention_heads = 6


def of_heads() -> None:
    Accelerator(strategy=TensorParallel(size=4)).prepare(Headed())


def of_axes() -> None:
    Accelerator(parallelism_config=ParallelismConfig(dp_shard_size=8, tp_size=4))


@pytest.mark.parametrize(
    ("main", "wish", "said"),
    [
        (loop, FSDP(replicas=3), r"FSDP\(replicas=3\) in a world of 64 ranks"),
        (loop, TensorParallel(size=5), r"TensorParallel\(size=5\) in a world of 64 ranks"),
        (of_heads, None, "num_attention_heads=6, to be divided over 4 ranks"),
        (of_axes, None, "in a world of 64 ranks(.|\n)*the sizes multiply to 32"),
    ],
)
def test_bad_layouts_fail_as_the_real_thing_does(main: Any, wish: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        notebook_launcher(main, (), 64, device="fake", strategy=wish, timeout_s=100)


def test_a_batch_that_does_not_divide_fails_as_the_real_thing_does() -> None:
    with pytest.raises(ConfigError, match=r"64"):
        played(FSDP(), kwargs={"split_batches": True})


def lean() -> tuple[float, list[int]]:
    """A model without memory, of which this rank has its shards."""
    accelerator = Accelerator(strategy=FSDP(cpu_ram_efficient_loading=True))
    with torch.device("meta"):
        model = Net(width=64, depth=2)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    loss: Tensor = loss_fn(model(torch.ones(2, 3).long()), torch.ones(2, 3).long())
    accelerator.backward(loss)
    optimizer.step()
    return loss.item(), [one.to_local().numel() for one in model.parameters()]


def test_a_model_on_the_meta_device_is_played_by_the_memory_of_its_shards() -> None:
    loss, shards = notebook_launcher(lean, (), 64, device="fake", timeout_s=100)[0]
    assert loss > 0
    assert sum(shards) < sum(one.numel() for one in Net(width=64, depth=2).parameters()) / 30


def test_what_names_no_layout_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="without num_processes"):
        plan_fake("fake", None, 1, 2)
    with pytest.raises(ConfigError, match=r'world of 64 ranks(.|\n)*"fake:63"'):
        plan_fake("fake:64", 8, 8, 2)
    with pytest.raises(ConfigError, match="is for notebook_launcher"):
        plan(64, "fake", [], 2)
    done = launches.launch("--device", "fake", "--num_processes", "64", __file__)
    assert done.returncode == 2 and "is for notebook_launcher" in done.stderr
    assert plan_fake("fake", 1, 1, 2).placements[0].comm is None
