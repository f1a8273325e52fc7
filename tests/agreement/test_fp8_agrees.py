"""In fp8 one process and many compute the same numbers, under every strategy that cuts models up:
scales are powers of two, so that no digit depends on who shares a batch. Slow: it needs torchao.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.fp8 import AORecipeKwargs
from notebook_accel.config.handlers import AutocastKwargs
from notebook_accel.config.installed import is_installed
from notebook_accel.config.wishes import DDP, FSDP, Strategy, TensorParallel
from notebook_accel.strategies.fp8 import gathering_layers
from tests.support.nets import Net

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not is_installed("torchao"), reason="needs torchao: pip install 'notebook-accel[fp8]'"
    ),
]

PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
FULL = FSDP(param_dtype="fp32")  # else what is not in 8 bits would be bf16
WAYS: dict[str, Strategy] = {
    "ddp": DDP(),
    "fsdp": FULL,
    "fsdp, gradients and states only": FSDP(param_dtype="fp32", reshard_after_forward=False),
    "fsdp recomputing": FSDP(param_dtype="fp32", activation_checkpointing=True),
    "fsdp offloaded": FSDP(param_dtype="fp32", cpu_offload=True),
    "fsdp from one copy": FSDP(param_dtype="fp32", cpu_ram_efficient_loading=True),
    "tensor": TensorParallel(size=2, plan=PLAN, data=FULL),
    "fsdp in copies": FSDP(param_dtype="fp32", replicas=2),
}
OF_FOUR = ("fsdp", "tensor", "fsdp in copies")
TIGHT = 2e-6  # fp32 around the layers in 8 bits
LOOSE = 3e-2  # bf16 around them, as it is if nothing is said


def loop(
    strategy: Strategy | None,
    accumulate: int = 1,
    precision: str = "fp8",
    casts: bool = False,
    gathers: bool = True,
    load: Path | None = None,
    save: Path | None = None,
    rows: int = 24,
    how: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train in batches of 8 rows, clipped; give losses, norms, an evaluation, names."""
    handlers = [
        AutocastKwargs(enabled=casts),
        AORecipeKwargs(enable_fsdp_float8_all_gather=gathers),
    ]
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        strategy=strategy,
        gradient_accumulation_steps=accumulate,
        kwargs_handlers=handlers,
        **(how or {}),
    )
    torch.manual_seed(0)
    x = torch.randn(rows, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    model = Net(width=32)
    batch_size = 8 // accumulate // accelerator._engine.layout.data_size
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if load is not None:
        accelerator.load_state(load)
    losses, window = [], []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            window.append(accelerator.reduce(loss, "mean").item())
            if accelerator.sync_gradients:
                losses += [sum(window) / len(window)]
                losses += [accelerator.clip_grad_norm_(model.parameters(), 0.5).item()]
                window.clear()
            optimizer.step()
    if save is not None:
        accelerator.save_state(save)
    state = accelerator.get_state_dict(model)
    model.eval()
    with torch.no_grad():
        losses.append(model(x).square().mean().item())
    return {
        "losses": losses,
        "names": list(state),
        "weights": [v for one in state.values() for v in one.flatten().tolist()],
        "gathering": len(gathering_layers(accelerator.unwrap_model(model))),
    }


def everything(folder: Path) -> dict[Any, dict[str, Any]]:
    size = Accelerator(cpu=True).num_processes
    if size == 1:
        found: dict[Any, dict[str, Any]] = {
            "fp32": loop(None, precision="no"),
            "alone": loop(None, save=folder / "alone"),
            "alone, short at the end": loop(None, rows=28),
            "alone in bf16": loop(None, casts=True),
            "alone on": loop(None, load=folder / "alone"),
            "alone compiled": loop(None, how={"dynamo_backend": "aot_eager"}),
        }
        return found
    found = {}
    for name, strategy in WAYS.items():
        if (name in OF_FOUR) if size == 4 else name != "fsdp in copies":
            found[name, "alone"] = loop(strategy)
            if name in ("ddp", "fsdp"):  # in the last window there is one micro-batch
                found[name, "alone, short at the end"] = loop(strategy, accumulate=2, rows=28)
    if size == 2:
        found["fsdp, gathered whole"] = loop(FULL, gathers=False)
        found["fsdp compiled"] = loop(FULL, how={"dynamo_backend": "aot_eager"})
        found["ddp in bf16"] = loop(DDP(), casts=True)
        found["fsdp in bf16"] = loop(FSDP(), casts=True)
        found["fsdp on"] = loop(FULL, load=folder / "alone", save=folder / "fsdp")
        found["ddp on"] = loop(DDP(), load=folder / "alone")
        found["ddp from fsdp"] = loop(DDP(), load=folder / "fsdp")
        found["fsdp from fsdp"] = loop(FULL, load=folder / "fsdp")
    return found


@pytest.fixture(scope="module")
def runs() -> dict[int, dict[Any, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            size: notebook_launcher(everything, (Path(folder),), size, device="cpu")[0]
            for size in (1, 2, 4)
        }


def test_fp8_is_close_to_fp32_and_is_not_fp32(runs: dict) -> None:
    plain, alone = runs[1]["fp32"], runs[1]["alone"]
    assert alone["losses"] == pytest.approx(plain["losses"], rel=0.15, abs=0.05)
    assert alone["losses"] != pytest.approx(plain["losses"], rel=1e-4)
    assert runs[1]["alone in bf16"]["losses"] == pytest.approx(plain["losses"], rel=0.15, abs=0.05)


@pytest.mark.parametrize("size", [2, 4])
def test_many_ranks_compute_what_one_does(runs: dict, size: int) -> None:
    found = {key: one for key, one in runs[size].items() if isinstance(key, tuple)}
    assert len(found) == (9 if size == 2 else 4)
    for key, one in found.items():
        alone = runs[1][key[1]]
        assert one["names"] == alone["names"] == list(Net(width=32).state_dict()), key
        assert one["losses"] == pytest.approx(alone["losses"], abs=TIGHT, rel=TIGHT), key
        assert one["weights"] == pytest.approx(alone["weights"], abs=1e-5), key
        assert one["gathering"] == (0 if key[0] == "ddp" else 4), key


def test_weights_gathered_in_8_bits_or_whole_are_the_same(runs: dict) -> None:
    whole, in_8_bits = runs[2]["fsdp, gathered whole"], runs[2]["fsdp", "alone"]
    assert (whole["gathering"], in_8_bits["gathering"]) == (0, 4)
    assert in_8_bits["losses"] == pytest.approx(whole["losses"], abs=TIGHT, rel=TIGHT)


def test_with_bf16_around_them_ranks_agree_as_bf16_does(runs: dict) -> None:
    alone = runs[1]["alone in bf16"]["losses"]
    for name in ("ddp in bf16", "fsdp in bf16"):
        assert runs[2][name]["losses"] == pytest.approx(alone, abs=LOOSE, rel=LOOSE), name


def test_compiled_layers_compute_the_same(runs: dict) -> None:
    alone = runs[1]["alone"]["losses"]
    for one in (runs[1]["alone compiled"], runs[2]["fsdp compiled"]):
        assert one["losses"] == pytest.approx(alone, abs=1e-5, rel=1e-5)


def test_a_checkpoint_goes_on_under_any_strategy(runs: dict) -> None:
    alone = runs[1]["alone on"]["losses"]
    for name in ("fsdp on", "ddp on"):
        assert runs[2][name]["losses"] == pytest.approx(alone, abs=TIGHT, rel=TIGHT), name
    further = runs[2]["fsdp from fsdp"]["losses"]
    assert runs[2]["ddp from fsdp"]["losses"] == pytest.approx(further, abs=1e-5, rel=1e-5)
    assert further[0] != alone[0]
