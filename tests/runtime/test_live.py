"""What a launched run sees without a word of its own: losses, progress, logs, and the stop."""

from __future__ import annotations

import contextvars
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.config.placement import Placement
from notebook_accel.errors import RuntimeMisuse, StopRun
from notebook_accel.events import context
from notebook_accel.events.emitter import Emitter, FrameReader
from notebook_accel.events.model import Metrics, Progress


@dataclass
class Page:
    stop: bool = False


class Launch:
    """A launched worker's context around a function, over a real pipe."""

    def __init__(self, **settings: Any) -> None:
        self.read, write = os.pipe()
        self.page = Page()
        self.emitter = Emitter(0, write)
        self.worker = context.WorkerContext(Placement(), self.emitter, self.page, settings)
        self.events: list[Any] = []

    def run(self, function: Callable[[], Any]) -> Any:
        def entered() -> Any:
            context.enter(self.worker)
            return function()

        value = contextvars.copy_context().run(entered)
        for leave in reversed(self.worker.at_exit):
            leave()
        self.emitter.flush()
        os.close(self.emitter._fd)
        reader = FrameReader()
        while data := os.read(self.read, 1 << 16):
            self.events += reader.feed(data)
        os.close(self.read)
        return value

    def points(self, name: str) -> list[tuple[int, float]]:
        every = [p for e in self.events if isinstance(e, Metrics) for p in e.points]
        return [(step, value) for series, step, value in every if series == name]


class Metric(Enum):
    F1 = 1


def test_names_that_are_no_strings_are_made_some_everywhere(tmp_path: Path) -> None:
    launch = Launch()

    def main() -> None:
        accelerator = Accelerator(cpu=True, project_dir=tmp_path, log_with=["jsonl", "tensorboard"])
        accelerator.init_trackers("run")
        accelerator.log({3: 2.0, 0.5: 1.0, ("val", "loss"): 0.25, Metric.F1: 0.75, None: 1}, step=4)
        accelerator.end_training()

    launch.run(main)
    names = ["3", "0.5", "('val', 'loss')", "Metric.F1", "None"]
    assert [launch.points(name) for name in names] == [[(4, v)] for v in (2.0, 1.0, 0.25, 0.75, 1)]
    (told,) = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [name for name in told if name not in ("time", "step")] == names


def test_names_and_values_that_no_curve_can_hold_end_no_run(tmp_path: Path, capsys: Any) -> None:
    launch = Launch()

    def main() -> None:
        accelerator = Accelerator(cpu=True, project_dir=tmp_path)
        accelerator.init_trackers("run")
        accelerator.log({"half \ud800": 1.0, "huge": 10**400, "list": [1], "complex": 1j}, step=4)
        accelerator.end_training()

    launch.run(main)
    assert launch.points("half ?") == [(4, 1.0)]
    said = capsys.readouterr().out
    for name, kind in (("huge", "int"), ("list", "list"), ("complex", "complex")):
        assert f"{name!r} is no number that a curve can hold ({kind})" in said
    (told,) = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert told["half ?"] == 1.0


@pytest.mark.parametrize("step", ["5", 2.5, math.nan, 2**63, [1], None])
def test_a_step_that_is_none_is_refused_where_it_is_given(step: Any) -> None:
    accelerator = Accelerator(cpu=True)
    if step is None:
        accelerator.log({"loss": 1.0}, step=step)
        accelerator.log({"loss": 1.0}, step=torch.tensor(3))  # type: ignore[arg-type]
        return
    with pytest.raises(RuntimeMisuse, match=re.escape(f"accelerator.log(step={step!r})")) as caught:
        accelerator.log({"loss": 1.0}, step=step)
    assert "whole numbers" in caught.value.why and "leave it out" in caught.value.fix


def test_the_loss_is_noted_before_division_and_averaged_over_its_window() -> None:
    launch = Launch(gradient_accumulation_steps=2)

    def main() -> int:
        accelerator = Accelerator(cpu=True)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loader = DataLoader(torch.arange(5.0), batch_size=1)
        optimizer, loader = accelerator.prepare(optimizer, loader)
        for x in loader:
            with accelerator.accumulate():
                accelerator.backward((weight * 0 + x).sum())
                optimizer.step()
                optimizer.zero_grad()
        return accelerator.gradient_accumulation_steps

    assert launch.run(main) == 2
    assert launch.points("loss") == [(1, 0.5), (2, 2.5), (3, 4.0)]
    last = [e for e in launch.events if isinstance(e, Progress)][-1]
    at = Progress(rank=0, step=3, epoch=0, batch=5, num_batches=5, samples=5)
    assert replace(last, data_wait_s=0.0) == at


def test_each_call_site_has_its_own_series_and_a_step_is_one_round() -> None:
    launch = Launch()

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        nets = [torch.nn.Linear(1, 1) for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.0) for net in nets]
        *nets, first, second = accelerator.prepare(*nets, *optimizers)
        x = torch.ones(1, 1)
        for number in range(3):
            accelerator.backward(nets[0](x).sum() * 0 + number)
            first.step()
            accelerator.backward(nets[1](x).sum() * 0 + number + 10)
            second.step()

    launch.run(main)
    assert launch.points("loss") == [(1, 0), (2, 1), (3, 2)]
    assert launch.points("loss/2") == [(1, 10), (2, 11), (3, 12)]


def test_logged_numbers_arrive_at_the_current_step_and_text_does_not(capsys: Any) -> None:
    launch = Launch()

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
        accelerator.backward(weight.sum())
        optimizer.step()
        accelerator.log({"accuracy": torch.tensor(0.5), "note": "text"})
        accelerator.log({"accuracy": 0.75, "note": "again"}, step=7)

    launch.run(main)
    said = [line for line in capsys.readouterr().out.splitlines() if "accelerator.log" in line]
    assert said == [
        "note: accelerator.log: 'note' is no number that a curve can hold (str): "
        "trackers get it, curves do not"
    ]
    assert launch.points("accuracy") == [(1, 0.5), (7, 0.75)]
    assert launch.points("note") == []


def test_the_launch_s_precision_counts_unless_the_argument_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    launch = Launch(mixed_precision="bf16")
    assert launch.run(lambda: Accelerator(cpu=True).mixed_precision) == "bf16"
    launch = Launch(mixed_precision="bf16")
    given = launch.run(lambda: Accelerator(mixed_precision="no", cpu=True).mixed_precision)
    assert given == "no"


def test_a_stopped_run_stops_at_the_next_step_and_its_models_can_be_salvaged() -> None:
    launch = Launch()
    steps = []

    def main() -> str:
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            while True:
                accelerator.backward(model(torch.ones(1, 1)).sum())
                steps.append(len(steps))
                launch.page.stop = len(steps) == 3
                optimizer.step()
        except StopRun:
            accelerator.gather(torch.ones(1))  # a collective in a cleanup still works
            assert launch.worker.salvage[0]() == [model]
            return "stopped"

    assert launch.run(main) == "stopped"
    assert len(steps) == 3
    assert len(launch.points("loss")) == 3


def test_without_a_launch_nothing_is_noted() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator._live is None
    accelerator.log({"loss": 1.0})


def test_the_time_that_a_loop_waits_for_its_batches_is_told() -> None:
    launch = Launch()

    making: list[float] = []  # seconds, as long as they took on this machine
    working: list[float] = []

    def sleep(seconds: float, took: list[float]) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        took.append(time.perf_counter() - began)

    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            sleep(0.03, making)
            return torch.ones(1)

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer, loader = accelerator.prepare(
            torch.optim.SGD([weight], lr=0.1), DataLoader(Slow())
        )
        for x in loader:
            accelerator.backward((weight * x).sum())
            optimizer.step()
            sleep(0.1, working)

    began = time.perf_counter()
    launch.run(main)
    took = time.perf_counter() - began
    waits = [event.data_wait_s for event in launch.events if isinstance(event, Progress)]
    assert making[0] <= waits[0] <= took - sum(working) - sum(making[1:]), "for one batch"
    assert sum(making) <= waits[-1] <= took - sum(working), "for four, and not for the work"


def train_with(optimizer: torch.optim.Optimizer, **log: float) -> Callable[[], None]:
    def main() -> None:
        accelerator = Accelerator(cpu=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        prepared, scheduler = accelerator.prepare(optimizer, schedule)
        for _ in range(3):
            accelerator.backward(optimizer.param_groups[0]["params"][0].sum())
            prepared.step()
            if log:
                accelerator.log(log)
            scheduler.step()
            time.sleep(0.06)  # news is sent at most every 50 ms

    return main


def weights(number: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(1)) for _ in range(number)]


def test_learning_rates_are_told_as_the_steps_used_them() -> None:
    launch = Launch()
    launch.run(train_with(torch.optim.SGD(weights(1), lr=1.0)))
    assert launch.points("lr") == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_a_rate_that_is_changed_in_place_is_told_too() -> None:
    launch, rate = Launch(), torch.tensor(1.0)

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        (weight,) = weights(1)
        optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=rate, foreach=False))
        for _ in range(3):
            accelerator.backward(weight.sum())
            optimizer.step()
            rate.mul_(0.5)

    launch.run(main)
    assert launch.points("lr") == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_groups_with_rates_of_their_own_get_curves_of_their_own() -> None:
    one, two, three = weights(3)
    groups = [{"params": [one]}, {"params": [two]}, {"params": [three], "lr": 0.1}]
    launch = Launch()
    launch.run(train_with(torch.optim.SGD(groups, lr=1.0)))
    assert [value for _, value in launch.points("lr")] == [1.0, 0.5, 0.25]
    assert [value for _, value in launch.points("lr/2")] == pytest.approx([0.1, 0.05, 0.025])
    assert launch.points("lr/3") == []


@pytest.mark.parametrize(
    "schedule",
    [
        lambda inner: torch.optim.lr_scheduler.MultiStepLR(inner, [14]),
        lambda inner: torch.optim.lr_scheduler.StepLR(inner, 3),
        lambda inner: torch.optim.lr_scheduler.CosineAnnealingLR(inner, 20),
    ],
    ids=["one fall", "stairs", "always"],
)
def test_a_line_through_the_points_of_a_rate_is_the_rate_of_every_step(
    schedule: Callable[[Any], Any],
) -> None:
    launch, used = Launch(), []

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        (weight,) = weights(1)
        inner = torch.optim.SGD([weight], lr=1.0)
        optimizer, scheduler = accelerator.prepare(inner, schedule(inner))
        for _ in range(20):
            used.append(inner.param_groups[0]["lr"])
            accelerator.backward(weight.sum())
            optimizer.step()
            scheduler.step()

    launch.run(main)
    steps, rates = zip(*launch.points("lr"), strict=True)
    assert list(steps) == sorted(set(steps)) and (steps[0], steps[-1]) == (1, 20)
    assert np.interp(range(1, 21), steps, rates) == pytest.approx(used)


def test_a_rate_that_stays_is_told_once() -> None:
    launch = Launch()

    def main() -> None:
        accelerator = Accelerator(cpu=True)
        (weight,) = weights(1)
        optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=torch.tensor(0.5)))
        for _ in range(3):
            accelerator.backward(weight.sum())
            optimizer.step()
            time.sleep(0.06)

    launch.run(main)
    assert launch.points("lr") == [(1, 0.5)]


def test_who_logs_the_rate_himself_has_his_own_curve() -> None:
    launch = Launch()
    launch.run(train_with(torch.optim.SGD(weights(1), lr=1.0), **{"train/learning_rate": 7.0}))
    assert launch.points("train/learning_rate") == [(1, 7.0), (2, 7.0), (3, 7.0)]
    assert launch.points("lr") == [(1, 1.0)], "told before the first log"


def test_progress_of_a_resumed_run_counts_its_own_samples_and_waits(tmp_path: Path) -> None:
    def train(passes: int, resume: bool) -> None:
        accelerator = Accelerator(cpu=True)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loader = DataLoader(torch.arange(8.0), batch_size=2)
        optimizer, loader = accelerator.prepare(optimizer, loader)
        if resume:
            accelerator.load_state(tmp_path / "state")
        for _ in range(passes):
            for x in loader:
                accelerator.backward((weight * x).sum())
                optimizer.step()
                optimizer.zero_grad()
        if not resume:
            accelerator.save_state(tmp_path / "state")

    first, second = Launch(), Launch()
    first.run(lambda: train(2, resume=False))
    second.run(lambda: train(3, resume=True))
    told = [one for one in second.events if isinstance(one, Progress)]
    assert {one.from_step for one in told} == {8}
    assert (told[-1].step, told[-1].samples, told[-1].epoch) == (20, 24, 4)
    assert [one for one in first.events if isinstance(one, Progress)][-1].samples == 16


@pytest.mark.parametrize("name", ["<module>", "<cell line: 1>"])
def test_a_place_in_a_cell_goes_on_in_later_cells_whatever_ipython_calls_the_code(
    name: str,
) -> None:
    launch = Launch()
    cell = "for one in losses:\n    live.note(one, frame())\n    live.stepped(next(steps), None)"

    def main() -> None:
        live = Accelerator(cpu=True)._live
        around = {"live": live, "frame": sys._getframe, "steps": itertools.count(1)}
        for losses in ([3.0, 2.0], [1.0]):
            around["losses"] = map(torch.tensor, losses)
            exec(compile(cell, "cell", "exec").replace(co_name=name), around)
            live.end_run([])

    launch.run(main)
    assert launch.points("loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert launch.points("loss/2") == []
