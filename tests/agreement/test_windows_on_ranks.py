"""Accumulation windows on two ranks weigh every sample alike, also the short last one."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks


def gradients_of_windows():
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    from notebook_accel import Accelerator

    class Stream(IterableDataset):
        def __iter__(self):
            return iter((k + 1) / 6 for k in range(6))

    def windows(data, clip=False):
        accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        grads, norms = [], []
        for x in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(x.float().view(-1, 1)).square().mean())
                if accelerator.sync_gradients:
                    norms.append(
                        accelerator.clip_grad_norm_(model.parameters(), 0.2).item()
                        if clip
                        else None
                    )
                optimizer.step()
                if accelerator.sync_gradients:
                    grads.append(accelerator.unwrap_model(model).weight.grad.item())
        return norms if clip else grads

    known = [(k + 1) / 6 for k in range(6)]
    return {
        "known": windows(known),
        "stream": windows(Stream()),
        "known_norms": windows(known, clip=True),
        "stream_norms": windows(Stream(), clip=True),
    }


def test_a_short_last_window_is_the_mean_over_what_it_holds() -> None:
    """GA03."""
    for said in run_ranks(gradients_of_windows, 2):
        assert said["known"] == pytest.approx([0.4439, 0.7000], abs=1e-4)
        assert said["stream"] == pytest.approx(said["known"], abs=1e-6)
        assert said["stream_norms"] == pytest.approx(said["known_norms"], abs=1e-6)
