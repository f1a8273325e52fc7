# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stop and go on: checkpoints
#
# **What you will see.** A run that dies in the middle of an epoch and goes on as if nothing had happened,
# also on another number of processes; what lies in a checkpoint; a damaged one that is noticed; and a
# run that you stop without losing anything.
#
# **You need** [one loop for any hardware](01_one_loop.ipynb). About 12 minutes to read, 25 seconds to run.

# %% [markdown]
# ## 1. A loop that can be interrupted anywhere
#
# A **checkpoint** is all that a run needs to go on: weights, the optimizer's memory, schedulers, loss
# scale, random numbers of each rank, and the place in the data. `accelerator.save_state()` writes it.
# What else your loop counts, you register: any object with `state_dict` and `load_state_dict`.

# %%
import os
import signal
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, WorkerDied, notebook_launcher
from notebook_accel.utils import ProjectConfiguration

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
train_set = TensorDataset(x[:1536], torch.tensor(digits.target[:1536]))
ALIKE = {"device": "cpu", "env": {"OMP_NUM_THREADS": "1"}}  # the same on every computer


class Progress:
    """How far the loop is; goes into checkpoints."""

    epoch = steps = 0

    def state_dict(self):
        return {"epoch": self.epoch, "steps": self.steps}

    def load_state_dict(self, state):
        self.epoch, self.steps = state["epoch"], state["steps"]


# %%
def main(folder, accumulate=1, dies_at=None):
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulate,
        project_config=ProjectConfiguration(
            project_dir=folder, automatic_checkpoint_naming=True, total_limit=2
        ),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    if (Path(folder) / "checkpoints").exists():
        accelerator.load_state()  # the newest one that is whole
        accelerator.print(f"going on after step {progress.steps}, in epoch {progress.epoch}")

    while progress.epoch < 3:
        for picture, label in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(cross_entropy(model(picture), label))
                optimizer.step()
            if not accelerator.sync_gradients:
                continue  # in the middle of an update
            progress.steps += 1
            if progress.steps == dies_at and not accelerator.is_main_process:
                os.kill(os.getpid(), signal.SIGKILL)  # what the system does when memory runs out
            if progress.steps % 20 == 0:
                accelerator.save_state()
        progress.epoch += 1
    return model


# %% [markdown]
# `automatic_checkpoint_naming` numbers the checkpoints, `total_limit=2` keeps the newest two. Where is the
# loop's place in the data? Nowhere in this code: the prepared loader knows it. After `load_state` its next
# pass is the rest of the pass that was cut off.
#
# First a run that nothing happens to. Then one whose rank 1 is killed at step 70.

# %%
undisturbed = notebook_launcher(main, args=(tempfile.mkdtemp(),), num_processes=2, **ALIKE)

# %%
folder = tempfile.mkdtemp()
try:
    notebook_launcher(main, args=(folder, 1, 70), num_processes=2, **ALIKE)
except WorkerDied as error:
    print(error)
    until_death = error.result.history

print(sorted(path.name for path in (Path(folder) / "checkpoints").iterdir()))

# %% [markdown]
# The error says which rank died, of what, and the last step that was heard of. Its `.result` still has the
# curve.
#
# **Predict before you run.** Now the same cell runs again. After which step does it go on? And will its
# losses be a. exactly those of the undisturbed run, but for rounding · b. close · c. different, because
# the shuffling starts anew?

# %%
guess_step, guess_losses = None, None  # write a number, and "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def largest_difference(run, from_step):
    mine, truth = run.history["loss"], undisturbed.history["loss"][from_step:]
    return max(abs(a - b) for a, b in zip(mine, truth, strict=True))


resumed = notebook_launcher(main, args=(folder,), num_processes=2, **ALIKE)
went_on_after = resumed.history.steps("loss")[0] - 1
apart = largest_difference(resumed, went_on_after)
print(compare(guess_step, went_on_after))
print(compare(guess_losses, "a" if apart < 1e-4 else "b" if apart < 0.1 else "c"))
assert apart < 1e-4, "As if nothing had happened."

# %%
plt.figure(figsize=(7, 3))
truth = undisturbed.history
plt.plot(truth.steps("loss"), truth["loss"], color="#57606a", linewidth=5, alpha=0.4)
plt.plot(until_death.steps("loss"), until_death["loss"], color="#b04a00")
plt.plot(
    resumed.history.steps("loss"), resumed.history["loss"], color="#1763a6", linestyle="dashed"
)
plt.legend(["undisturbed", "until rank 1 was killed", "resumed"])
plt.xlabel("update")
plt.ylabel("loss")
plt.title(f"Killed at step 70, resumed at {went_on_after}, and nobody can tell")
plt.show()

# %% [markdown]
# ## 2. Another number of processes
#
# The same checkpoint, one process. It accumulates two batches of 16 where two ranks had one each, so the
# effective batch is the same, and the curve should be. (Leave `batch_size` as it was: the place in the
# data is counted in batches.)

# %%
first_60 = tempfile.mkdtemp()
try:
    notebook_launcher(main, args=(first_60, 1, 70), num_processes=2, **ALIKE)
except WorkerDied:
    print("killed again, at step 70")

alone = notebook_launcher(main, args=(first_60, 2), num_processes=1, **ALIKE)
apart = largest_difference(alone, 60)
print(f"one rank instead of two: the losses differ by at most {apart:.0e}")
assert apart < 1e-3

# %% [markdown]
# ## 3. What lies in it

# %%
newest = sorted((Path(folder) / "checkpoints").iterdir())[-1]
for path in sorted(newest.iterdir()):
    print(f"{path.stat().st_size / 1000:8.1f} kB  {path.name}")

# %% [markdown]
# The names are Accelerate's. Weights are safetensors, readable by everything. A checkpoint appears in one
# step: while it is being written, it has no manifest, and `load_state()` passes over it. Let us damage the
# newest one, as a full disk would.

# %%
(newest / "model.safetensors").write_bytes(b"")


def load_newest(folder):
    accelerator = Accelerator(
        project_config=ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    accelerator.load_state()
    return progress.steps


steps = notebook_launcher(load_newest, args=(folder,), num_processes=2, **ALIKE)[0]
print(f"loaded the checkpoint of step {steps}")
assert steps == 120, "Not 140, which is damaged: the one before it."

# %% [markdown]
# ## 4. Weights for others
#
# Who only uses a model does not need the optimizer's memory, which is twice as large as the weights.
# `accelerator.save_model` writes weights alone, in shards where they are large; `load_weights` reads them
# without an `Accelerator`.

# %%
from notebook_accel import load_weights


def export(folder):
    accelerator = Accelerator()
    model = accelerator.prepare(resumed[0])
    accelerator.save_model(model, folder)


weights = tempfile.mkdtemp()
notebook_launcher(export, args=(weights,), num_processes=2, **ALIKE)
fresh = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
load_weights(fresh, weights)
assert torch.equal(fresh(x[:8]), resumed[0](x[:8])), "The same answers, to the last bit."
print(os.listdir(weights))

# %% [markdown]
# ## 5. Stop without losing anything
#
# You need no checkpoint to stop by hand. The interrupt button of the notebook stops all ranks after the
# same update. The cell ends with `RunInterrupted`; what there is until then is in its `.result`. Here the
# cell cannot press a button, so it starts a run in the background and stops it from code.

# %%
import time


def endless():
    accelerator = Accelerator()
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for picture, label in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(picture), label))
            optimizer.step()


handle = notebook_launcher(endless, num_processes=2, block=False, on_interrupt="return", **ALIKE)
for _ in range(600):  # a minute at most, until it has learned for a while
    if handle.done or len(handle.history.get("loss", [])) >= 20:
        break
    time.sleep(0.1)
handle.stop()
stopped = handle.wait()
print(f"stopped: {stopped.stopped}, after {len(stopped.history['loss'])} updates")
assert stopped.stopped and len(stopped.history["loss"]) >= 20
assert isinstance(stopped.salvaged[0], nn.Linear), "The model as it was at that update."

# %% [markdown]
# ## 6. A mistake worth making
#
# The network has grown since the checkpoint was written.


# %%
def grown(folder):
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.register_for_checkpointing(Progress())
    accelerator.load_state(folder)
    return model, optimizer


before = sorted((Path(folder) / "checkpoints").iterdir())[-2]
try:
    notebook_launcher(grown, args=(before,), num_processes=2, **ALIKE)
except Exception as error:
    said = f"{type(error).__name__}: {error}".replace(folder, "FOLDER")
    print(said[:600])
    assert "0.weight" in said, "It names what does not fit."

# %% [markdown]
# ## Exercises
#
# **1.** 3 epochs of 48 steps, a checkpoint every 20 steps, killed right after step 119. How many steps
# are done twice?

# %%
answer = None  # write a number


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


check(answer, 119 % 20)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 119 - 100  # 101 to 119 are done again
killed_late = tempfile.mkdtemp()
try:
    notebook_launcher(main, args=(killed_late, 1, 119), num_processes=2, **ALIKE)
except WorkerDied:
    found = notebook_launcher(load_newest, args=(killed_late,), num_processes=2, **ALIKE)[0]
assert answer == 119 - found, "What is on the disk is the state after step 100."
check(answer, 119 % 20)

# %% [markdown]
# **2.** Keep the best loss of an epoch in the checkpoint as well. Write a class `Best` with an attribute
# `loss` (at first infinity) that `register_for_checkpointing` takes.


# %%
class Best:
    loss = float("inf")


# %%
def check_best(kind):
    def save_and_load(folder):
        accelerator = Accelerator()
        best = kind()
        accelerator.register_for_checkpointing(best)
        best.loss = 0.25
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        best.loss = 99.0
        accelerator.load_state(folder)
        return best.loss

    if not hasattr(kind, "state_dict") and not hasattr(kind, "load_state_dict"):
        return "Not answered yet."
    try:
        run = notebook_launcher(save_and_load, (tempfile.mkdtemp(),), num_processes=2, **ALIKE)
    except ValueError as error:
        return f"Not right: {error}"
    if list(run) == [0.25, 0.25]:
        return "Yes: 0.25 was saved, and is back on both ranks."
    return f"Not right: a saved loss of 0.25 came back as {list(run)} in place of [0.25, 0.25]."


print(check_best(Best))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
class Best:
    loss = float("inf")

    def state_dict(self):
        return {"loss": self.loss}

    def load_state_dict(self, state):
        self.loss = state["loss"]


said = check_best(Best)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# ## Remember
#
# - `save_state()` between two updates, also in the middle of an epoch; `load_state()` goes on there.
# - Register what your loop counts.
# - Another number of ranks is fine; keep `batch_size`, and the effective batch by accumulation.
# - `save_model` and `load_weights` for who only uses the model.
#
# ## What next
#
# - [A worker fails or hangs](06_debugging.ipynb): find out why.
# - [What `prepare` returns](../3_researcher/01_one_loop.ipynb), for researchers
