"""Tensors of unequal sizes in torch's own collectives are told as such, whatever gloo does then."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from notebook_accel import Accelerator, RanksStuck, notebook_launcher


def brings(kind: str, stays: bool = True, small: int = 1) -> None:
    num = 4 if Accelerator(cpu=True).process_index == small else 4000
    if kind == "all_reduce":
        dist.all_reduce(torch.ones(num))
    elif kind == "broadcast":
        dist.broadcast(torch.ones(num), 0)
    elif kind == "all_gather":
        dist.all_gather([torch.ones(num) for _ in range(2)], torch.ones(num))
    elif kind == "scatter":
        parts = [torch.ones(num), torch.ones(num)]
        dist.scatter(torch.ones(num), parts if dist.get_rank() == 0 else None, 0)
    elif kind == "reduce":
        dist.reduce(torch.ones(num), 1)
    elif kind == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(torch.ones(num // 2), torch.ones(num))
    else:
        dist.reduce_scatter(torch.ones(num // 2), list(torch.ones(num).chunk(2)))
    if stays:
        dist.barrier()


@pytest.mark.parametrize(
    "kind",
    ["all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter_tensor", "reduce_scatter"],
)
def test_tensors_of_unequal_sizes_are_told_with_the_line(kind: str) -> None:
    with pytest.raises(RanksStuck) as error:
        notebook_launcher(brings, (kind,), 2, device="cpu", timeout_s=60)
    told = str(error.value)
    assert "test_sizes.py" in told
    assert "bring tensors of the same shape and dtype" in told
    if kind == "all_gather":  # whoever is first sees either
        assert " 16 bytes in all_gather" in told
        return
    if kind == "broadcast":  # its sender is content, and goes on
        assert "rank 1 brought 16 bytes in broadcast at" in told
        assert "was sent another size" in told
        return
    assert "the ranks bring tensors of different sizes to one collective" in told, told
    assert "rank 0 16000 bytes" in told
    assert "rank 1 16 bytes" in told


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_what_does_not_fit_is_told_also_when_its_sender_is_done(kind: str) -> None:
    with pytest.raises(RanksStuck, match=f"rank 1 brought 16 bytes in {kind} at"):
        notebook_launcher(brings, (kind, False), 2, device="cpu", timeout_s=60)


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_debug_mode_finds_what_leaves_a_larger_tensor_half_filled(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it gloo says nothing, and neither can we."""
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "yes")
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        notebook_launcher(brings, (kind, False, 0), 2, device="cpu", timeout_s=60)
