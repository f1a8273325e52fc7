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
# # Keep what a run said: curves, trackers and records
#
# **What you will see.** Your own numbers drawn beside the loss, the same numbers in a file and
# in TensorBoard, and runs that can be looked at again and compared after the kernel is gone.
#
# **You need** [the whole loop](01_one_loop.ipynb). About 10 minutes to read, half a minute to
# run.

# %% [markdown]
# ## 1. A curve of your own
#
# The loss is drawn by itself. `accelerator.log` adds a **series**: a name and a number at a
# step. Series with the same last word share a picture: `train/accuracy` and `test/accuracy`.

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher, runs

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
train_set, test_set = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])
folder = Path(tempfile.mkdtemp())


def share_right(accelerator, model, loader):
    right = seen = 0
    with torch.no_grad():
        for a, b in loader:
            guess, truth = accelerator.gather_for_metrics((model(a).argmax(1), b))
            right, seen = right + (guess == truth).sum().item(), seen + len(truth)
    return right / seen


# %%
def main(rate, log_with="jsonl", num_epochs=5):
    accelerator = Accelerator(log_with=log_with, project_dir=folder)
    accelerator.init_trackers("digits", config={"rate": rate, "epochs": num_epochs})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    model, optimizer, loader, short, test = accelerator.prepare(
        net,
        optimizer,
        DataLoader(train_set, batch_size=16, shuffle=True),
        DataLoader(TensorDataset(*train_set[:300]), batch_size=64),
        DataLoader(test_set, batch_size=64),
    )
    for _ in range(num_epochs):
        for a, b in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(a), b))
            optimizer.step()
        shares = {
            "train/accuracy": share_right(accelerator, model, short),
            "test/accuracy": share_right(accelerator, model, test),
        }
        accelerator.log(shares)
    accelerator.end_training()
    return shares["test/accuracy"]


# %% [markdown]
# **Predict before you run.** Two ranks call `accelerator.log` five times each. How many points
# has `test/accuracy` in the picture? a. 10 · b. 5


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a" or "b"

# %%
run = notebook_launcher(main, (3e-3,), num_processes=2, device="auto-or-cpu")

# %%
print(compare(guess, {10: "a", 5: "b"}[len(run.history["test/accuracy"])]))
assert run[0] == run[1] == run.history["test/accuracy"][-1], "Both ranks marked the same exam."

# %% [markdown]
# Only the main process logs; the other rank's calls do nothing. So log numbers that are *about
# all ranks*: gathered or reduced first.

# %% [markdown]
# ## 2. Where it went
#
# `log_with="jsonl"` is the default: a file with one line per call, which needs no account and no
# package.

# %%
written = sorted(folder.rglob("*.jsonl"))
lines = [json.loads(line) for line in written[0].read_text().splitlines()]
print(written[0].relative_to(folder))
print(lines[-1])
assert any("test/accuracy" in line for line in lines)

# %% [markdown]
# Other trackers by name: `"tensorboard"`, `"wandb"`, `"mlflow"`, `"trackio"`, `"comet_ml"`,
# `"aim"`, `"clearml"`, `"dvclive"`, `"swanlab"`; several as a list; `"all"` for those that are
# installed. One that is missing is an error before anything trains:

# %%
from IPython import get_ipython

try:
    notebook_launcher(main, (3e-3, "abacus"), num_processes=2, device="auto-or-cpu")
except ValueError:
    get_ipython().showtraceback()

# %% [markdown]
# Log in to a service in a cell *before* the launch: a worker has no keyboard.

# %% [markdown]
# ## 3. Runs on record
#
# Every launch is written down on this machine: what was asked, the curves, the output, how it
# ended. Also one that failed, and one whose kernel was killed.

# %%
other = notebook_launcher(main, (3e-4,), num_processes=2, device="auto-or-cpu")

# %%
runs.compare(run, other)

# %% [markdown]
# `runs.list()` shows the newest ones, in any notebook; `runs.last().show()` draws the last one
# after a restart. A report is one page that needs nothing else:

# %%
run.report(folder / "report.html")
size = (folder / "report.html").stat().st_size
print(f"report.html: {size / 1000:.0f} kB")
assert size > 10_000

# %% [markdown]
# ## 4. Numbers for your own plots

# %%
rows = run.history.rows()
print(len(rows), "rows; the first:", rows[0])
figure, plot = plt.subplots(figsize=(7, 2.6))
for one, rate, style in ((run, 3e-3, "-"), (other, 3e-4, "--")):
    plot.plot(one.history["test/accuracy"], style, marker="o", label=f"rate {rate}")
plot.set(
    title="The larger rate is ahead from the first epoch",
    xlabel="epoch",
    ylabel="share of the test set",
)
plot.legend()
plt.show()
assert run.history["test/accuracy"][0] > other.history["test/accuracy"][0]

# %% [markdown]
# ## Exercises
#
# **1.** Write a function that gives the step at which a run's loss first fell below a limit,
# from `run.history["loss"]`.


# %%
def first_below(losses, limit):
    """The number of the first step whose loss is below ``limit``, or None."""
    ...


# %%
TRIES = [([3, 1, 0], 2, 1), ([3, 1], 4, 0), ([3, 1], 0.5, None)]  # losses, limit, what is right


def check_first_below(function):
    if function([3, 1, 0], 2) is None:
        return "Not answered yet."
    for losses, limit, truth in TRIES:
        got = function(losses, limit)
        if got != truth:
            return f"Not right: first_below({losses}, {limit}) gave {got} in place of {truth}."
    return f"Yes: all {len(TRIES)} tries are right."


print(check_first_below(first_below))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def first_below(losses, limit):
    return next((step for step, loss in enumerate(losses) if loss < limit), None)


said = check_first_below(first_below)
assert said.startswith("Yes"), said
fast, slow = (first_below(one.history["loss"], 1.0) for one in (run, other))
print(said)
print(f"first step below 1: {fast} at the larger rate, {slow} at the smaller one")
assert fast is not None and (slow is None or fast < slow)

# %% [markdown]
# **2.** `"test/accuracy"` has one point an epoch, `"loss"` has one an update. Above, two ranks with batches
# of 16 made 5 epochs of 1,500 samples. How many points would `"loss"` have with three ranks?

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


def steps_of_an_epoch():
    return len(Accelerator().prepare(DataLoader(train_set, batch_size=16)))


on_two, on_three = (
    notebook_launcher(steps_of_an_epoch, num_processes=ranks, device="cpu")[0] for ranks in (2, 3)
)
check(answer, 5 * on_three)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 5 * 32  # 94 batches are dealt to three ranks: 31 each and one more, filled up
assert answer == 5 * on_three
assert len(run.history["loss"]) == 5 * on_two, "And the run on two had what two ranks have."
check(answer, 5 * on_three)

# %% [markdown]
# ## Remember
#
# - The loss needs no code; `accelerator.log` is for the rest.
# - Log what is about all ranks: gather or reduce first.
# - A run stays on record: `runs.last()`, `runs.compare(a, b)`, `run.report(...)`.
#
# ## What next
#
# - [Choose a strategy by memory](09_strategies.ipynb)
# - [Curves and trackers](../../docs/guides/tracking.md)
