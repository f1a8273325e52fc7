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
# # One loop for any hardware: from yours to anywhere
#
# **What you will see.** A loop converted line by line, the same loss curve from four arrangements of
# processes and micro-batches, an exam that counts every sample once, and five common mistakes, each
# caught while it happens.
#
# **You need** a PyTorch training loop of your own. About 15 minutes to read, half a minute to run.
#
# The same subject at other depths: [for beginners](../1_beginner/03_one_loop.ipynb) ·
# [for researchers](../3_researcher/01_one_loop.ipynb).

# %% [markdown]
# ## 1. Set-up
#
# scikit-learn's digits: 1,536 pictures to train on, 261 to test with. A small network. Nothing here knows
# about processes.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train_set = TensorDataset(x[order[:1536]], y[order[:1536]])
test_set = TensorDataset(x[order[1536:]], y[order[1536:]])


def make_net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


# %% [markdown]
# ## 2. The whole loop
#
# A **rank** is one process of a run; ranks are numbered from 0. A **launch** starts them. All of them
# call the same function.
#
# ```diff
#   def main(batch_size=32):
# +     accelerator = Accelerator()
#       torch.manual_seed(0)
#       model = make_net()
#       optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
#       loader = DataLoader(train_set, batch_size, shuffle=True)
# +     model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
#       for epoch in range(4):
#           for picture, label in loader:
# -             picture, label = picture.to("cuda"), label.to("cuda")
#               optimizer.zero_grad()
#               loss = cross_entropy(model(picture), label)
# -             loss.backward()
# +             accelerator.backward(loss)
#               optimizer.step()
#       return model
# ```
#
# Three lines come, one changes, and the device disappears. The version below has two more things that
# a real loop has: a test at the end of each epoch, and accumulation. Section 5 explains the latter; with
# `accumulate=1` its `with` does nothing.


# %%
def main(batch_size=32, accumulate=1):
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(train_set, batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=64)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, loader, test_loader
    )
    for _ in range(4):
        model.train()
        for picture, label in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(cross_entropy(model(picture), label))
                optimizer.step()
        accelerator.log({"accuracy": test(accelerator, model, test_loader)[0]})
    return model


def test(accelerator, model, loader):
    """Give the accuracy, and how many samples it is of."""
    model.eval()
    hits = []
    with torch.no_grad():
        for picture, label in loader:
            hit = model(picture).argmax(dim=1) == label
            hits.append(accelerator.gather_for_metrics(hit))
    hits = torch.cat(hits).float()
    return hits.mean().item(), len(hits)


# %%
run = notebook_launcher(main, args=(16,), num_processes=2, device="auto-or-cpu")

# %% [markdown]
# `args` goes to `main` on each rank. `run[0]` is what rank 0 returned, `run.history` holds the curves,
# `run.logs(rank)` what a rank wrote.

# %%
losses = run.history["loss"]
assert losses[-1] < losses[0] / 2, "The loss fell by more than half."
assert run.history["accuracy"][-1] > 0.9

# %% [markdown]
# ## 3. The walkthrough
#
# | line | with one process | with N |
# | --- | --- | --- |
# | `Accelerator()` | finds the device | joins the other ranks, takes its own device |
# | `prepare(model)` | moves it to the device | also wraps it, so that backward averages gradients |
# | `prepare(optimizer)` | knows when an accumulation window is full | the same |
# | `prepare(loader)` | moves batches to the device | also deals them out: batch *i* goes to rank *i* mod N |
# | `backward(loss)` | divides by the window, scales under fp16, draws the curve | also averages over ranks |
# | `gather_for_metrics(t)` | gives `t` | all ranks' `t` in order, without what was repeated to fill up |
# | `print`, `log` | | rank 0 only |
#
# `batch_size` is **per rank**, as in Accelerate. One update sees `batch_size x ranks x accumulate`
# samples: the **effective batch**.
#
# ## 4. Counting correctly
#
# 261 test pictures in batches of 64 are 5 batches, the last of 5 pictures. Two ranks must make equally
# many steps, so the loader fills up the end with pictures from the beginning.
#
# **Predict before you run.** How many results does a plain `gather` collect on two ranks: a. 261 ·
# b. more?

# %%
guess = None  # write "a" or "b"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def count():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(261)), batch_size=64))
    plain, exact = [], []
    with torch.no_grad():
        for (number,) in loader:
            plain += accelerator.gather(number).tolist()
            exact += accelerator.gather_for_metrics(number).tolist()
    return plain, exact


plain, exact = notebook_launcher(count, num_processes=2, device="auto-or-cpu")[0]
print(f"gather: {len(plain)} results, gather_for_metrics: {len(exact)}")
print(compare(guess, "a" if len(plain) == 261 else "b"))
assert exact == list(range(261)), "Every sample once, in the order of the data set."

# %% [markdown]
# The warning above is a **guard rail**: the toolkit saw samples being counted twice. The average of
# per-batch accuracies would be wrong, too: the small last batch would weigh as much as a full one.
# Gather results, then average. More in [count every sample once](02_counting.ipynb).
#
# ## 5. Accumulation: the same curve from four arrangements
#
# **Accumulation** adds up the gradients of several micro-batches before one update. It trades time for
# memory. Here are four ways to an effective batch of 32.
#
# **Predict before you run.** Is the largest difference between their loss curves a. zero, bit by bit ·
# b. rounding (below 0.001) · c. visible?

# %%
guess = None  # write "a", "b" or "c"

# %%
ARRANGEMENTS = {  # ranks, batch size, accumulate
    "1 rank x 32": (1, 32, 1),
    "2 ranks x 16": (2, 16, 1),
    "1 rank x 16 x 2": (1, 16, 2),
    "2 ranks x 8 x 2": (2, 8, 2),
}
ALIKE = {"device": "cpu", "env": {"OMP_NUM_THREADS": "1"}}  # wherever you are; one thread a rank
curves = {}
for name, (num_ranks, *args) in ARRANGEMENTS.items():
    done = notebook_launcher(main, args=args, num_processes=num_ranks, **ALIKE)
    curves[name] = torch.tensor(done.history["loss"])

# %%
first = curves["1 rank x 32"]
apart = max((curve - first).abs().max().item() for curve in curves.values())
print(f"largest difference: {apart:.1e}")
print(compare(guess, "a" if apart == 0 else "b" if apart < 1e-3 else "c"))

plt.figure(figsize=(7, 3))
styles = ["solid", "dashed", "dashdot", "dotted"]
colors = ["#1763a6", "#b04a00", "#2f7031", "#6f42a8"]
for (name, curve), style, color, width in zip(
    curves.items(), styles, colors, (6, 3, 2, 1.5), strict=True
):
    plt.plot(curve, linestyle=style, color=color, linewidth=width, alpha=0.8, label=name)
plt.xlabel("update")
plt.ylabel("loss")
plt.title("Four arrangements of 32 samples, one curve")
plt.legend()
plt.show()

assert {len(curve) for curve in curves.values()} == {4 * 1536 // 32}, "The same number of updates."
assert apart < 1e-3, "And the same losses, but for rounding."

# %% [markdown]
# Sums of floating point numbers depend on their order, so the last digits differ; nothing else does.
#
# ## 6. Five common mistakes, and who catches them
#
# Each cell makes one mistake. Read what is printed: the line, the reason, the cure.
#
# **The result of `prepare` is thrown away.** The loop trains the unprepared objects: each rank reads all
# the data, and no gradient is averaged.


# %%
def thrown_away():
    accelerator = Accelerator()
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(train_set, batch_size=256)
    accelerator.prepare(model, optimizer, loader)
    for picture, label in loader:
        picture, label = picture.to(accelerator.device), label.to(accelerator.device)
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(picture), label))
        optimizer.step()


def caught(run):
    """The first line of each guard rail that spoke up in a run."""
    lines = "".join(run.logs).splitlines()
    return [line.partition("GuardRail: ")[2] for line in lines if "GuardRail" in line]


found = caught(notebook_launcher(thrown_away, num_processes=2, device="auto-or-cpu"))
assert any("prepare" in one for one in found)

# %% [markdown]
# **`loss.backward()` while accumulating.** The division by the window is missing: gradients come out
# twice as large.


# %%
def old_backward():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(train_set, batch_size=256)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for picture, label in loader:
        with accelerator.accumulate(model):
            cross_entropy(model(picture), label).backward()
            optimizer.step()
            optimizer.zero_grad()


found = caught(notebook_launcher(old_backward, num_processes=2, device="auto-or-cpu"))
assert any("backward" in one for one in found)

# %% [markdown]
# **A collective behind `if accelerator.is_main_process`.** Rank 0 waits in `gather` for a rank that is
# elsewhere. Bare PyTorch waits for half an hour.


# %%
def only_main_gathers():
    accelerator = Accelerator()
    score = torch.ones(1, device=accelerator.device)
    if accelerator.is_main_process:
        score = accelerator.gather(score)
    accelerator.wait_for_everyone()


from notebook_accel import RanksStuck

try:
    notebook_launcher(only_main_gathers, num_processes=2, device="auto-or-cpu")
except RanksStuck as error:
    print(error)
    assert "gather" in str(error), "It names the call and the line."

# %% [markdown]
# **The wrapped model is saved.** Its keys begin with `module.`, and the file loads nowhere else. Return
# the model, or save `accelerator.unwrap_model(model).state_dict()`, or call `accelerator.save_model`.

# %%
import io


def saved_wrapped():
    accelerator = Accelerator()
    model = accelerator.prepare(make_net())
    torch.save(model.state_dict(), io.BytesIO())


found = caught(notebook_launcher(saved_wrapped, num_processes=2, device="auto-or-cpu"))
assert found, "Saving a wrapped model is noticed."

# %% [markdown]
# **A list of the notebook is filled in the worker.** Each rank is a process with a copy of its own. The
# notebook's list stays empty. Return it instead. This guard rail speaks in the notebook, so it can be
# recorded as any warning.

# %%
import warnings

from notebook_accel import GuardRail

losses_seen = []


def fills_a_list():
    accelerator = Accelerator()
    for step in range(3):
        losses_seen.append(step)
    accelerator.wait_for_everyone()


with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always", GuardRail)
    notebook_launcher(fills_a_list, num_processes=2, device="auto-or-cpu")

said = "\n".join(str(one.message) for one in heard if one.category is GuardRail)
print(said)
assert losses_seen == [], "Only the workers' copies grew."
assert "losses_seen: 0 -> 3 items" in said, "The guard rail names the list, and what it missed."

# %% [markdown]
# ## Exercises
#
# **1.** Two ranks, `batch_size=64`, `accumulate=3`, 1,536 samples. How many samples does one update
# see, and how many updates has an epoch?

# %%
samples, updates = None, None  # write two numbers


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


print("samples: ", end="")
check(samples, 64 * 2 * 3)
print("updates: ", end="")
check(updates, len(train_set) // (64 * 2 * 3))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
samples, updates = 384, 4
wide = notebook_launcher(main, args=(64, 3), num_processes=2, device="auto-or-cpu")
assert len(wide.history["loss"]) == 4 * updates, "4 epochs, 4 updates in each."
assert samples * updates == len(train_set), "And each sample once an epoch."

# %% [markdown]
# **2.** Write `class_counts(accelerator, loader)`: how often each of the ten digits occurs in the test
# set, exact on any number of ranks.


# %%
def class_counts(accelerator, loader):
    """Give a list of ten numbers."""
    ...


# %%
def check_counts(function):
    """Run it on two ranks and compare with what the data set itself says."""

    def on_a_rank():
        accelerator = Accelerator()
        return function(accelerator, accelerator.prepare(DataLoader(test_set, batch_size=64)))

    counted = notebook_launcher(on_a_rank, num_processes=2, device="auto-or-cpu")[0]
    truth = torch.bincount(test_set.tensors[1], minlength=10).tolist()
    if counted is None:
        return "Not answered yet."
    if list(counted) == truth:
        return f"Yes: {truth}."
    return f"Not right: the test set on two ranks gave {counted} in place of {truth}."


print(check_counts(class_counts))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def class_counts(accelerator, loader):
    labels = [accelerator.gather_for_metrics(label) for _, label in loader]
    return torch.bincount(torch.cat(labels).cpu(), minlength=10).tolist()


said = check_counts(class_counts)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# ## Remember
#
# - Four lines: the import, `Accelerator()`, `prepare`, `accelerator.backward`.
# - `batch_size` is per rank. Effective batch = batch size x ranks x accumulate. Same effective batch,
#   same curve.
# - Results for a metric go through `gather_for_metrics`; every rank calls it.
# - What a worker changes stays in the worker. Return it.
#
# ## What next
#
# - [Count every sample once](02_counting.ipynb): metrics, uneven data, losses per token.
# - [What `prepare` returns, and where it stops being enough](../3_researcher/01_one_loop.ipynb)
# - [The same for beginners](../1_beginner/03_one_loop.ipynb), to give to somebody
# - [Coming from Accelerate, Lightning or torchrun](../../docs/coming-from.md)
