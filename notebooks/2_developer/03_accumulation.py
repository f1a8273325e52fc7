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
# # The effective batch: same updates, less memory
#
# **What you will see.** How accumulation makes a large batch out of small ones, what a short last window
# does, how many updates an epoch has, and which learning rate belongs to which batch.
#
# **You need** [one loop for any hardware](01_one_loop.ipynb). About 12 minutes to read, 30 seconds to run.

# %% [markdown]
# ## 1. Three numbers make one
#
# A **micro-batch** is what goes through the model at once. An **update** is one step of the optimizer.
# The **effective batch** is how many samples one update sees:
#
# `effective batch = batch_size x ranks x gradient_accumulation_steps`
#
# Memory grows with `batch_size`. So if 64 samples do not fit, take 16 and accumulate 4.

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


def train(num_samples, batch_size, accumulate, lr=0.2, epochs=1):
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(x[:num_samples], y[:num_samples]), batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    micro_batches = updates = 0
    for _ in range(epochs):
        for picture, label in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(picture), label)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            micro_batches += 1
            updates += accelerator.sync_gradients  # True when the window is complete
    return micro_batches, updates, accelerator.unwrap_model(model).state_dict()


ALIKE = {"device": "cpu", "env": {"OMP_NUM_THREADS": "1"}}  # the same on every computer

# %% [markdown]
# `optimizer.step()` and `optimizer.zero_grad()` are called after every micro-batch. Inside a window they
# do nothing: the prepared optimizer knows when it is complete, and `accelerator.sync_gradients` says so.
# Nothing is sent between ranks inside a window either.
#
# **Predict before you run.** 1,024 samples, batches of 16, one rank, accumulate 4. How many micro-batches
# and how many updates are one epoch?

# %%
guess_micro_batches, guess_updates = None, None  # write two numbers


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


small = notebook_launcher(train, args=(1024, 16, 4), num_processes=1, **ALIKE)
micro_batches, updates, small_weights = small[0]
print("micro-batches:", compare(guess_micro_batches, micro_batches))
print("updates:      ", compare(guess_updates, updates))
assert len(small.history["loss"]) == updates, "The curve has one point an update."

# %% [markdown]
# ## 2. Is it the same as a large batch?

# %%
large = notebook_launcher(train, args=(1024, 64, 1), num_processes=1, **ALIKE)
two = notebook_launcher(train, args=(1024, 16, 2), num_processes=2, **ALIKE)


def largest_difference(weights, others):
    return max((weights[name] - others[name]).abs().max().item() for name in weights)


for name, run in {"1 rank x 64": large, "2 ranks x 16 x 2": two}.items():
    apart = largest_difference(small_weights, run[0][2])
    print(f"1 rank x 16 x 4 against {name}: weights differ by at most {apart:.0e}")
    assert apart < 1e-4, "The same model, but for rounding."

# %% [markdown]
# It is, for models whose layers look at each sample alone. **BatchNorm** does not: it computes its mean
# over what goes through at once, so it sees 16 samples here and 64 there. Dropout draws other numbers.
#
# ## 3. The short last window
#
# 1,000 samples in batches of 16 are 63 micro-batches, and 63 = 15 x 4 + 3. The last window has 3, and the
# very last batch has only 8 samples. What is an update worth then?

# %%
short = notebook_launcher(train, args=(1000, 16, 4), num_processes=1, **ALIKE)
print(f"{short[0][0]} micro-batches, {short[0][1]} updates")
assert short[0][1] == 16, "The rest of three makes an update, too."

# %% [markdown]
# The toolkit divides by the real number of micro-batches in the window, 3, not by 4. So the last update
# has its full size. (Accelerate divides by 4 there: [differences](../../docs/differences.md).) You can
# check it: an epoch over 192 samples in batches of 64 with accumulate 4 is *one* window of three
# micro-batches. It must be the step of one batch of 192.

# %%
window = notebook_launcher(train, args=(192, 64, 4), num_processes=1, **ALIKE)
whole = notebook_launcher(train, args=(192, 192, 1), num_processes=1, **ALIKE)
apart = largest_difference(window[0][2], whole[0][2])
print(f"differ by at most {apart:.0e}")
assert window[0][1] == whole[0][1] == 1
assert apart < 1e-5, "Three of four: still the step of the whole."

# %% [markdown]
# ## 4. Which learning rate?
#
# A larger effective batch means fewer updates an epoch. With the same learning rate the model moves less.
# Two rules are in use. Going from a batch of *b* to *k x b*:
#
# | rule | learning rate | used with |
# | --- | --- | --- |
# | **linear** | k times | SGD, up to a few thousand samples, with warm-up (Goyal et al. 2017) |
# | **square root** | the square root of k times | Adam and its family (Malladi et al. 2022) |
#
# Nobody scales it for you: the toolkit states the effective batch at the start, and your learning rate
# stays what you wrote.
#
# **Predict before you run.** The batch grows from 16 to 64. After the same number of epochs, which
# learning rate for 64 comes closest to the loss of 16 with 0.05?
#
# a. 0.05 (unchanged) · b. 0.1 (square root) · c. 0.2 (linear)

# %%
guess = None  # write "a", "b" or "c"

# %%
plans = {
    "16, lr 0.05": (16, 0.05),
    "a. 64, lr 0.05": (64, 0.05),
    "b. 64, lr 0.1": (64, 0.1),
    "c. 64, lr 0.2": (64, 0.2),
}
curves = {}
for name, (batch_size, lr) in plans.items():
    run = notebook_launcher(train, args=(1024, batch_size, 1, lr, 6), num_processes=1, **ALIKE)
    curves[name] = run.history["loss"]

# %%
plt.figure(figsize=(7, 3.2))
styles = ["solid", "dotted", "dashdot", "dashed"]
colors = ["#57606a", "#6f42a8", "#2f7031", "#b04a00"]
for (name, curve), style, color in zip(curves.items(), styles, colors, strict=True):
    samples = torch.arange(1, len(curve) + 1) * (6 * 1024 / len(curve))
    smooth = torch.tensor(curve).unfold(0, len(curve) // 24, 1).mean(dim=1)
    plt.plot(samples[-len(smooth) :], smooth, linestyle=style, color=color, label=name)
plt.xlabel("samples seen")
plt.ylabel("loss, smoothed")
plt.title("Four times the batch: SGD wants four times the learning rate")
plt.legend()
plt.show()

ends = {name: sum(curve[-len(curve) // 6 :]) * 6 / len(curve) for name, curve in curves.items()}
target = ends.pop("16, lr 0.05")
best = min(ends, key=lambda name: abs(ends[name] - target))
print(compare(guess, best[0]))
assert best.startswith("c"), "For plain SGD on this model it is the linear rule."

# %% [markdown]
# The rule is a starting point, not a law. It breaks when the batch is so large that an epoch has a
# handful of updates. The researcher series measures [where](../3_researcher/06_lr_scaling.ipynb).
#
# ## 5. The scheduler counts, too
#
# A prepared scheduler moves once per rank at each update, as Accelerate's does: a schedule that was
# planned in batches of one process ends at the right place. If yours is planned in updates, say
# `Accelerator(schedule_in_updates=True)`.


# %%
def schedule(in_updates):
    accelerator = Accelerator(schedule_in_updates=in_updates)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for picture, label in loader:
        accelerator.backward(cross_entropy(model(picture), label))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return round(torch.log(torch.tensor(scheduler.get_last_lr()[0])).item() / -0.10536)


moves = {
    in_updates: notebook_launcher(schedule, args=(in_updates,), num_processes=2, **ALIKE)[0]
    for in_updates in (False, True)
}
print(f"4 updates on two ranks: the schedule moved {moves[False]} times, in updates {moves[True]}")
assert moves == {False: 8, True: 4}

# %% [markdown]
# ## 6. A mistake worth making
#
# Accumulation is asked for, and `accumulate` is never entered. Then each loss is divided by 4, and every
# micro-batch makes an update all the same: steps of a quarter of the size, four times as often.


# %%
def never_entered():
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for picture, label in loader:
        accelerator.backward(cross_entropy(model(picture), label))
        optimizer.step()
        optimizer.zero_grad()


forgot = notebook_launcher(never_entered, num_processes=2, **ALIKE)
assert "accumulate" in "".join(forgot.logs), "The guard rail names what is missing."

# %% [markdown]
# ## Exercises
#
# **1.** Two GPUs hold 24 samples each. You want an effective batch of 384. What is
# `gradient_accumulation_steps`?

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


check(answer, 384 // (24 * 2))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 8
measured = notebook_launcher(train, args=(1536, 24, answer), num_processes=2, **ALIKE)
assert measured[0][1] == 1536 // 384, "1,536 samples are four updates of 384."
check(answer, 384 // (24 * 2))

# %% [markdown]
# **2.** You trained on one rank with batches of 32 and SGD at 0.1. Now you launch the same function on
# two ranks, and change nothing else. Which learning rate would the linear rule want? And which
# `batch_size` would keep 0.1 right?

# %%
new_lr, new_batch_size = None, None  # write two numbers

# %%
print("learning rate: ", end="")
check(new_lr, 0.1 * 2)
print("batch size: ", end="")
check(new_batch_size, 32 // 2)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
new_lr, new_batch_size = 0.2, 16
one = notebook_launcher(train, args=(1024, 32, 1, 0.1), num_processes=1, **ALIKE)
same = notebook_launcher(train, args=(1024, new_batch_size, 1, 0.1), num_processes=2, **ALIKE)
assert largest_difference(one[0][2], same[0][2]) < 1e-4, "16 on each of two: the same updates."
assert new_lr / 0.1 == 2 * 32 / 32, "Or twice the batch, and twice the learning rate."

# %% [markdown]
# ## Remember
#
# - Effective batch = `batch_size` x ranks x `gradient_accumulation_steps`; the start of a run states it.
# - Same effective batch, same updates. Only memory and time differ.
# - A short last window counts what it has.
# - More ranks with the same `batch_size` is a larger batch: think of the learning rate.
#
# ## What next
#
# - [Half the bits](04_precision.ipynb): mixed precision, and what it does to these numbers.
# - [LR scaling, measured](../3_researcher/06_lr_scaling.ipynb), and
#   [what no_sync saves](../3_researcher/04_no_sync.ipynb), for researchers
