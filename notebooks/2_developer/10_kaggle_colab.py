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
# # Kaggle, Colab and your laptop: one notebook for all of them
#
# **What you will see.** Cells that take two GPUs where they are, one where there is one, and two
# CPU processes elsewhere; the precision that the device is fast at; and a session that ends in
# the middle without losing its work.
#
# **You need** [the whole loop](01_one_loop.ipynb). About 10 minutes to read, half a minute to
# run.

# %% [markdown]
# ## 1. Install
#
# On Kaggle (turn the internet on, choose "GPU T4 x2") and Colab the package is not there yet.
# This cell installs it from its wheel, a file that you bring ([Kaggle](../../docs/hosts/kaggle.md),
# [Colab](../../docs/hosts/colab.md)), else from the address in `SOURCE`. Where the toolkit is, it
# does nothing.

# %%
import importlib.util
import os
import subprocess
import sys
from glob import glob

SOURCE = None
if importlib.util.find_spec("notebook_accel") is None:
    places = ".", "/content", "/kaggle/input/**"
    wheels = [w for p in places for w in glob(f"{p}/notebook_accel-*.whl", recursive=True)]
    source = max(wheels, key=os.path.getmtime, default=SOURCE)
    if source is None:
        raise ModuleNotFoundError(
            "notebook_accel is not installed, and no notebook_accel-*.whl lies beside this page\n"
            "  why: the project has no public address yet, so nothing can be downloaded\n"
            "  do:  `pip install .` in a copy of the repository; or `make wheel` there, and bring\n"
            "       dist/*.whl here (Colab: files panel; Kaggle: a dataset). Run this cell again"
        )
    pip = [sys.executable, "-m", "pip", "install", "-q", source]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(
            f"pip could not install {source}\n  why: {done.stderr.strip()}\n"
            "  do:  if the internet is off, turn it on (Kaggle: Settings); then run this cell again"
        )

# %% [markdown]
# ## 2. What is here
#
# `LaunchPicker` shows what this machine has, without opening any of it, and preselects what
# suits it.

# %%
import math

from notebook_accel import LaunchPicker

picker = LaunchPicker(batch_size=16)
picker

# %%
print(picker.code)

# %% [markdown]
# | | two T4s (Kaggle) | one T4 (Colab) | no GPU |
# | --- | --- | --- | --- |
# | `device="auto-or-cpu"`, `num_processes=2` | a rank on each | two CPU processes | two CPU processes |
# | `device="auto-or-cpu"`, no `num_processes` | a rank on each | one rank on the GPU | one CPU process |
# | precision | fp16 | fp16 | no |
#
# Leave `num_processes` out where you want all the speed; write 2 where the lesson is about two
# processes.
#
# **Predict before you run.** How many ranks does the next cell start *on this machine*?


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write a number

# %%
from notebook_accel import Accelerator, notebook_launcher


def who():
    accelerator = Accelerator()
    return str(accelerator.device), accelerator.num_processes


run = notebook_launcher(who, device="auto-or-cpu")
print(compare(guess, run[0][1]))
print("rank 0 is on", run[0][0])
assert len(list(run)) == run[0][1]

# %% [markdown]
# ## 3. A session that ends
#
# A free session ends after some hours, or when you close the page. So save as you go, and begin
# every run by looking for what was saved. With `automatic_checkpoint_naming` each `save_state()`
# writes a folder of its own, and `load_state()` takes the newest one that is whole: one whose
# writing was cut off is passed over. `total_limit=2` keeps two.

# %%
import shutil
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel.utils import ProjectConfiguration

LASTS = Path("/kaggle/working")  # what lies there is kept with the notebook
KEEP = LASTS / "lesson" if LASTS.exists() else Path(tempfile.mkdtemp())
digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
)


class Progress:
    """How far the loop is; goes into checkpoints."""

    epoch = 0

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


# %%
def train(num_epochs, stop_after=None):
    accelerator = Accelerator(
        project_config=ProjectConfiguration(
            project_dir=KEEP, automatic_checkpoint_naming=True, total_limit=2
        )
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if (KEEP / "checkpoints").exists():
        accelerator.load_state()
        accelerator.print(f"going on after epoch {progress.epoch}")
    while progress.epoch < num_epochs:
        for a, b in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(a), b))
            optimizer.step()
        progress.epoch += 1
        accelerator.save_state()
        if progress.epoch == stop_after:
            raise KeyboardInterrupt("the session ended")  # a stand-in for what really happens
    return net, progress.epoch


# %%
shutil.rmtree(KEEP / "checkpoints", ignore_errors=True)  # only here: the lesson begins anew
try:
    notebook_launcher(train, (4, 2), num_processes=2, device="auto-or-cpu")
except KeyboardInterrupt as end:
    print("the first session:", end)

# %%
second = notebook_launcher(train, (4,), num_processes=2, device="auto-or-cpu")
steps_of_a_pass = math.ceil(len(data) / 32)
assert second[0][1] == 4, "It went on to the fourth epoch."
assert len(second.history["loss"]) == 2 * steps_of_a_pass, "And did only what was left."

# %% [markdown]
# The second session may have another number of GPUs: a checkpoint is loaded on any.

# %% [markdown]
# ## 4. Without a screen
#
# "Save and run all" on Kaggle and `jupyter execute` have nobody who looks. Text is written while
# it trains, and the picture is in the saved file. For a plot of your own, use the curve:

# %%
figure, plot = plt.subplots(figsize=(7, 2.6))
plot.plot(second.history["loss"], color="#1763a6")
plot.set(
    title="The second session goes on where the first one stopped", xlabel="step", ylabel="loss"
)
plt.show()

# %% [markdown]
# ## 5. When a cell has used the GPU
#
# `torch.cuda.is_available()` in a cell is enough to make forked processes useless for a GPU.
# Elsewhere that means: restart the kernel. Here workers start from a clean process then, and the
# launch line says so. The same can be asked for:

# %%
run = notebook_launcher(who, num_processes=2, device="auto-or-cpu", start_method="forkserver")
assert run[0][1] == 2

# %% [markdown]
# ## Exercises
#
# **1.** A pass over 1,797 samples with `batch_size=16` takes how many steps on one rank, and how
# many on two?

# %%
answer = None  # write two numbers, like (12, 6)


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


def num_steps():
    return len(Accelerator().prepare(DataLoader(data, batch_size=16)))


counted = [
    notebook_launcher(num_steps, num_processes=ranks, device="auto-or-cpu")[0] for ranks in (1, 2)
]
check(answer and list(answer), counted)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
on_one = math.ceil(1797 / 16)  # 112 full batches and one of 5
on_two = math.ceil(on_one / 2)  # dealt to two ranks: 57 each, one of them filled up
assert [on_one, on_two] == counted
check([on_one, on_two], counted)

# %% [markdown]
# ## Remember
#
# - `device="auto-or-cpu"` runs everywhere; leave `num_processes` out to use all GPUs.
# - fp16 on a T4, bf16 from the A100 on; the picker says which is native.
# - Begin by loading, save as you go.
#
# ## What next
#
# - [Colab](../../docs/hosts/colab.md) · [Kaggle](../../docs/hosts/kaggle.md) ·
#   [Binder](../../docs/hosts/binder.md)
# - How it works: [one loop on any hardware, for researchers](../3_researcher/01_one_loop.ipynb)
