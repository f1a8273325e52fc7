"""Guard rails: each silent mistake is said once, with its line; right loops hear nothing."""

from __future__ import annotations

import _thread
import copy
import io
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from notebook_accel import Accelerator, ConfigError, GuardRail, notebook_launcher, without_guards
from notebook_accel.config import guards
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.data import waiting
from notebook_accel.events import rails
from notebook_accel.launch import left_behind
from notebook_accel.runtime import selfcheck
from notebook_accel.runtime.guards import check_pinned
from notebook_accel.runtime.rehearsal import REHEARSAL_STEPS, misplaced


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rails, "_said", set())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def loss(self, x: Any) -> Any:
        return self.layer(x).square().mean()


def parts(accelerator: Accelerator, schedule: bool = False) -> Any:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)] if schedule else []
    loader = DataLoader(torch.ones(16, 2), batch_size=2)
    return (*accelerator.prepare(model, optimizer, loader), *schedulers)


def heard(function: Callable[..., Any], *args: Any) -> list[str]:
    """The guard rails that speak while ``function`` runs here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    return [str(one.message) for one in caught if one.category is GuardRail]


def heard_in_ranks(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """The same on each of two ranks."""

    def main() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(*args)
        return [str(one.message) for one in caught if one.category is GuardRail]

    return list(notebook_launcher(main, num_processes=2, device="cpu").values)


# ── loops that are right ──────────────────────────────────────────────────────────────────────


def right_loops() -> None:
    for steps in (1, 2):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
        model, optimizer, loader, scheduler = parts(accelerator, schedule=True)
        scheduler = accelerator.prepare(scheduler)
        for batch in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(batch).mean())
                optimizer.step()
                scheduler.step()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, optimizer, loader = parts(accelerator)
    for index, batch in enumerate(loader):  # counted by hand
        accelerator.backward(model(batch).mean())
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, scheduler = parts(accelerator, schedule=True)
    best = copy.deepcopy(model.state_dict())
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()
        scheduler.step()
    model.load_state_dict(best)
    torch.save(accelerator.get_state_dict(model), io.BytesIO())
    torch.save(accelerator.unwrap_model(model).state_dict(), io.BytesIO())
    with torch.no_grad():
        for batch in loader:
            accelerator.gather_for_metrics(model(batch))
    accelerator.gather(torch.ones(2))


def test_right_loops_hear_nothing() -> None:
    assert heard(right_loops) == []
    assert heard_in_ranks(right_loops) == [[], []]


def test_a_rehearsal_leaves_no_hook_behind() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = parts(accelerator)
    assert len(loader) > REHEARSAL_STEPS
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()
    assert not optimizer.inner._optimizer_step_pre_hooks
    assert not any(one._backward_hooks for one in model.parameters())


def test_a_gradient_that_comes_in_a_thread_of_autograd_is_nobodys_line() -> None:
    """So it is on a GPU: there is no Python frame below the hook."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, _, _ = parts(accelerator)
    (hook,) = (list(model.parameters())[-1]._backward_hooks or {}).values()
    _thread.start_new_thread(hook, (torch.ones(1),))  # nothing of Python's calls it
    deadline = time.monotonic() + 20
    while len(hook.__self__._rates) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ── at prepare ────────────────────────────────────────────────────────────────────────────────


def test_a_discarded_result_of_prepare() -> None:
    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def discard() -> None:
        accelerator.prepare(model, optimizer)

    def keep() -> Any:
        kept = accelerator.prepare(model, optimizer)
        return kept, accelerator.prepare(optimizer)

    def let_us_keep() -> None:
        selfcheck.train(accelerator, 4)  # code of ours, which prepares and keeps

    assert heard(let_us_keep) == []
    (text,) = heard(discard)
    assert text.startswith("the result of prepare() is thrown away (SGD) (File ")
    assert "  do:  write `model, optimizer = accelerator.prepare(model, optimizer)`" in text
    assert heard(keep) == []


def test_copies_that_cannot_go_on_by_themselves() -> None:
    config = DataLoaderConfiguration(non_blocking=True)
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(torch.ones(4)))
    assert heard(check_pinned, loader, None) == [], "on the CPU nothing is copied"
    seat = replace(loader.reading.seat, device=torch.device("cuda"))
    loader.reading.seat = seat
    (text,) = heard(check_pinned, loader, None)
    assert text.startswith("non_blocking=True for a loader whose memory is not pinned")
    assert "pin_memory=True" in text


@pytest.mark.parametrize(
    ("split", "said"), [(False, "2 samples x 2 processes"), (True, "1 sample x 2 processes")]
)
def test_what_a_step_sees_is_stated_once(
    capfd: pytest.CaptureFixture[str], split: bool, said: str
) -> None:
    def main() -> None:
        how = DataLoaderConfiguration(split_batches=split)
        for _ in range(2):
            accelerator = Accelerator(gradient_accumulation_steps=4, dataloader_config=how)
            parts(accelerator)
            parts(accelerator)

    notebook_launcher(main, num_processes=2, device="cpu")
    out, err = capfd.readouterr()
    assert "note: " not in err, "a page paints stderr red"
    lines = [line for line in out.splitlines() if "note: " in line]
    assert lines == [f"note: {said} x 4 micro-batches = {8 if split else 16} a step"]


# ── in the loop ───────────────────────────────────────────────────────────────────────────────


def direct_backward() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = parts(accelerator)
    for batch in loader:
        with accelerator.accumulate(model):
            model(batch).mean().backward()
            optimizer.step()


def test_a_direct_backward_while_accumulating() -> None:
    (main,), other = heard_in_ranks(direct_backward)
    assert other == [], "all ranks run the same line"
    (text,) = heard(direct_backward)
    assert text == main
    assert text.startswith("loss.backward() is called directly (File ")
    assert "not divided by the accumulated batches" in text
    assert "  do:  write accelerator.backward(loss)" in text


def test_a_direct_backward_while_losses_are_scaled() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model, _, loader = parts(accelerator)
    (text,) = heard(lambda: [model(batch).mean().backward() for batch in loader])
    assert "the loss is not scaled, so its gradients have another size" in text


def never_accumulated() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = parts(accelerator)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()


def test_accumulation_that_is_never_entered() -> None:
    (text,) = heard(never_accumulated)
    assert "gradient_accumulation_steps=2, but the optimizer steps on every batch" in text
    assert "with accelerator.accumulate(model):" in text


def unprepared_scheduler() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader, scheduler = parts(accelerator, schedule=True)
    for batch in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(model(batch).mean())
            optimizer.step()
            scheduler.step()


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_an_unprepared_scheduler_that_steps_on_every_micro_batch() -> None:
    (text,) = heard(unprepared_scheduler)
    assert text.startswith("the learning rate moves inside a window of 2 micro-batches")
    assert "give the scheduler to accelerator.prepare()" in text


def past_the_wrapper() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = parts(accelerator)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(accelerator.unwrap_model(model).loss(batch))
        optimizer.step()


def test_a_method_of_the_unwrapped_model_that_skips_averaging() -> None:
    """PR03: with one rank nothing is skipped."""
    assert heard(past_the_wrapper) == []
    (text,), other = heard_in_ranks(past_the_wrapper)
    assert text.startswith("gradients came from a forward that went past the prepared model")
    assert "each rank goes its own way" in text
    assert other == []


def saves_wrapped(box: list[Any]) -> None:
    accelerator = Accelerator(cpu=True)
    model, _, _ = parts(accelerator)
    state = model.state_dict()
    copy.deepcopy(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert list(torch.load(file, weights_only=True)) == list(state)
    model.load_state_dict(state)
    pickle.loads(pickle.dumps(model.module))


def test_a_wrapped_model_that_is_saved() -> None:
    (text,), _ = heard_in_ranks(saves_wrapped, [])
    assert text.startswith("a wrapped model is saved (")
    assert "  do:  save accelerator.get_state_dict(model)" in text


def test_a_wrapped_model_can_still_be_pickled_whole() -> None:
    def saves_all() -> None:
        accelerator = Accelerator(cpu=True)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))  # its forward is watched too
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(wrapped(torch.randn(4, 2)).sum())
        optimizer.step()
        torch.save(wrapped, io.BytesIO())

    (text,), _ = heard_in_ranks(saves_all)
    assert text.startswith("a wrapped model is saved (")


def plain_gather() -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(10.0), batch_size=4))
    with torch.no_grad():
        for batch in loader:
            accelerator.gather(batch)
            accelerator.gather(batch.mean())  # no row a sample


def test_a_plain_gather_of_a_padded_last_batch() -> None:
    (text,), other = heard_in_ranks(plain_gather)
    assert text.startswith("gather() in an evaluation counts 6 samples of the last batch twice")
    assert "use accelerator.gather_for_metrics" in text
    assert other == []
    assert heard(plain_gather) == [], "one rank has no repeats"


def test_a_batch_on_another_ranks_device() -> None:
    def strays() -> None:
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(nn.Linear(2, 1))
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 2, device="meta"))
        assert not model._forward_pre_hooks, "only the first batches are looked at"

    (text,) = heard(strays)
    assert text.startswith("rank 0 gives its model a batch on meta, but its device is cpu (File ")
    assert "the same for all ranks, which then share it" in text
    assert "or prepare the loader, which moves its batches" in text


def test_a_rank_that_computes_on_another_ranks_device() -> None:
    own = torch.device("cuda:1")
    assert misplaced({torch.device("cuda:1")}, own) is None
    assert misplaced({torch.device("cuda:1"), torch.device("cuda:0")}, own) == torch.device(
        "cuda:0"
    )
    assert misplaced({torch.device("cpu")}, own) == torch.device("cpu")
    assert misplaced({torch.device("cuda")}, torch.device("cuda:0")) is None


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return torch.ones(2)


@pytest.mark.parametrize("dataset", [Slow(), torch.ones(20, 2)], ids=["slow", "fast"])
def test_a_loop_that_waits_for_its_data(monkeypatch: pytest.MonkeyPatch, dataset: Any) -> None:
    slow = isinstance(dataset, Slow)
    monkeypatch.setattr(
        waiting, "LOOK_S", 0.05 if slow else 0.5
    )  # a busy machine stops it at times
    loader = Accelerator(cpu=True).prepare(DataLoader(dataset))

    def loop() -> None:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.0 if slow else 0.02)

    said = heard(loop)
    if slow:
        (text,) = said
        assert text.startswith("the loop waited for data during ")
        assert "num_workers" in text
    else:
        assert said == []


# ── variables of the notebook ─────────────────────────────────────────────────────────────────

losses: list[float] = []
returned: list[int] = []
best = 0.0


def note(value: float) -> None:
    losses.append(value)


def changes_globals() -> Any:
    global best
    for index in range(120):
        note(index)
        returned.append(index)
    best = 3.5
    return {"all": returned}


def test_a_variable_that_changed_in_the_worker_only() -> None:
    (text,) = heard(lambda: notebook_launcher(changes_globals, num_processes=2, device="cpu"))
    assert text.startswith(
        "changed in rank 0 only, not in the notebook: losses: 0 -> 120 items, best: 0.0 -> 3.5"
    )
    assert "return it: run = notebook_launcher(changes_globals, ...); run[0]" in text
    assert losses == []


def test_functions_that_only_read_variables_leave_nothing_behind() -> None:
    def reads() -> int:
        return len(losses) + int(best)

    before = left_behind.look(reads)
    assert before is not None
    assert before.tell(0, reads()) is None
    assert left_behind.look(len) is None


# ── switches ──────────────────────────────────────────────────────────────────────────────────


def test_a_guard_rail_speaks_once_a_line() -> None:
    def twice() -> None:
        never_accumulated()
        never_accumulated()

    assert len(heard(twice)) == 1


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    yield lambda text: monkeypatch.setenv("NOTEBOOK_ACCEL_GUARDS", text)


def test_guard_rails_are_switched_off_by_name(variable: Callable[[str], None]) -> None:
    for text in ("-no-accumulate", " -scheduler, -no-accumulate ", "off"):
        variable(text)
        assert heard(never_accumulated) == []
    variable("-scheduler")
    assert len(heard(never_accumulated)) == 1


def test_guard_rails_are_switched_off_for_a_block() -> None:
    def quiet(*names: str) -> None:
        with without_guards(*names):
            never_accumulated()

    assert heard(quiet, "no-accumulate") == []
    assert heard(quiet) == []
    assert len(heard(quiet, "scheduler")) == 1


def test_an_unknown_guard_rail_is_refused_with_the_names(variable: Callable[[str], None]) -> None:
    wrong = without_guards("no-acumulate")
    with pytest.raises(ConfigError, match="there is no guard rail 'no-acumulate'") as caught, wrong:
        pass
    assert "no-accumulate, " in str(caught.value)
    variable("-gather")
    with pytest.raises(ConfigError, match="there is no guard rail 'gather'"):
        guards.wanted("scheduler")
