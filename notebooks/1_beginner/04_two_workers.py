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
# # Why two workers
#
# **What you will see:** how two workers share a pile of pictures without ever taking the same one,
# how much time that saves, and when it saves none.
#
# **You need:** [one loop for any hardware](03_one_loop.ipynb). Seven minutes to read, fifteen seconds
# to run.

# %% [markdown]
# ## 1. A pile of slow work
#
# Real pictures lie on a disk. Reading one and unpacking it takes a few thousandths of a second, and a
# million of them take hours. While a worker waits for its picture, it learns nothing.
#
# Here is a data set that is slow on purpose: each of its 240 pictures takes 10 milliseconds to fetch.
# It hands out the picture, its label, and its number in the pile, so that we can follow it.

# %%
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

digits = load_digits()


class SlowPictures(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, number):
        time.sleep(0.010)  # the disk
        picture = torch.tensor(digits.data[number] / 16, dtype=torch.float32)
        return picture, int(digits.target[number]), number


# %% [markdown]
# ## 2. The loop, and a notebook for each worker
#
# This is the loop of the last lesson. It also writes down which pictures it got, and returns that list
# and the time it took.

# %%
from notebook_accel import Accelerator, notebook_launcher


def learn(together=24):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(
        SlowPictures(), batch_size=together // accelerator.num_processes, shuffle=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    seen = []
    began = time.perf_counter()
    for picture, label, number in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(picture), label)
        accelerator.backward(loss)
        optimizer.step()
        seen += number.tolist()
    return seen, time.perf_counter() - began


# %% [markdown]
# ## 3. Alone, then together
#
# **Before you run:** 240 pictures at 10 milliseconds each take at least 2.4 seconds alone. How long
# will two workers take?
#
# * a. as long
# * b. about half
# * c. longer, because they have to compare notes

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


alone = notebook_launcher(learn, num_processes=1, device="auto-or-cpu")
together = notebook_launcher(learn, num_processes=2, device="auto-or-cpu")

# %%
_, seconds_alone = alone[0]
seconds_together = max(seconds for _, seconds in together)  # the slower one counts

print(f"alone {seconds_alone:.1f} s, together {seconds_together:.1f} s")

waits_alone = len(alone[0][0])  # one for each picture that the worker fetched
waits_together = max(len(seen) for seen, _ in together)
print(f"waits for the disk, one after the other: alone {waits_alone}, together {waits_together}")
print(compare(guess, "b" if waits_together == waits_alone / 2 else "a"))

# %% [markdown]
# Each worker fetched half of the pile, and both fetched at the same time. On a quiet computer the time
# is about half. (If yours is busy with other things, the seconds may say otherwise: run both cells
# again.)
#
# ## 4. Who got which picture?
#
# `prepare` deals the pile out like cards. No picture goes to both, and none is left over. Check that:

# %%
first, second = set(together[0][0]), set(together[1][0])

assert not first & second, "No picture went to both workers."
assert first | second == set(range(240)), "And none was left out."
print(f"worker 0 got {len(first)} pictures, worker 1 got {len(second)}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 1.8))
for worker, (mine, color, mark) in enumerate([(first, "#1763a6", "o"), (second, "#b04a00", "x")]):
    numbers = sorted(mine)
    axes.scatter(numbers, [worker] * len(numbers), s=14, color=color, marker=mark)
axes.set_yticks([0, 1], ["worker 0", "worker 1"])
axes.set_ylim(-0.6, 1.6)
axes.set_xlabel("number of the picture in the pile")
axes.set_title("Every picture has exactly one mark")
plt.show()

# %% [markdown]
# The marks lie in no order, because `shuffle=True` mixes the pile first. Both workers mix it in the
# same way, so they agree on who takes what, without asking each other.
#
# ## 5. When two workers save nothing
#
# Starting two workers and comparing notes takes time as well. If the whole job takes half a second,
# that is more than you save. Here the pictures come at once, so there is nothing to wait for.


# %%
def learn_fast():
    accelerator = Accelerator()
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pictures = torch.tensor(digits.data[:240] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[:240])
    loader = DataLoader(
        torch.utils.data.TensorDataset(pictures, labels),
        batch_size=24 // accelerator.num_processes,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    began = time.perf_counter()
    for picture, label in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(picture), label))
        optimizer.step()
    return time.perf_counter() - began


for num_processes in (1, 2):
    run = notebook_launcher(learn_fast, num_processes=num_processes, device="auto-or-cpu")
    print(f"{num_processes} worker(s): {1000 * max(run):.0f} ms of training", end=", ")
    print(f"{1000 * run.duration_s:.0f} ms from start to end\n")

# %% [markdown]
# Most of that time is starting and ending. So the rule is simple: **more workers are worth it when
# the work takes much longer than the start**, seconds or more.
#
# A second rule: on one computer, workers share its cores. Two workers on two cores have one core
# each. A third worker would have to wait for its turn. With GPUs, each worker needs one of its own.

# %% [markdown]
# ## Exercises
#
# **1.** Three workers share 240 pictures. How many does each one get?

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


check(answer, 240 // 3)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
run = notebook_launcher(learn, args=(24,), num_processes=3, device="auto-or-cpu")
answer = 240 // 3
assert [len(seen) for seen, _ in run] == [answer] * 3
check(answer, 240 // 3)

# %% [markdown]
# **2.** 240 pictures can be shared by two. What if there are 241? Then one worker would have one
# picture more, and the other would have nothing to compare notes with. Which is the way out?
#
# * a. the last picture is thrown away
# * b. a picture from the beginning is used a second time, so that both have 121
#
# Think of what is fair to a picture. Then look.

# %%
answer = None  # write "a" or "b"


# %%
def deal(size):
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(list(range(size)), batch_size=11))
    return [number for batch in loader for number in batch.tolist()]


dealt = notebook_launcher(deal, args=(241,), num_processes=2, device="auto-or-cpu")
everything = dealt[0] + dealt[1]
check(answer, "b" if len(everything) > len(set(everything)) else "a")

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
print(f"{len(dealt[0])} + {len(dealt[1])} pictures dealt, {len(set(everything))} different ones")
assert set(everything) == set(range(241)), "Nobody is left out."
assert len(dealt[0]) == len(dealt[1]), "Both have the same number of steps."
answer = "b"  # and gather_for_metrics knows which ones are repeated, and counts them once
check(answer, "b" if len(everything) > len(set(everything)) else "a")

# %% [markdown]
# ## Remember
#
# * Two workers deal the pile: each picture goes to exactly one of them.
# * They pay off when the work takes much longer than the start.
# * A core, or a GPU, for each worker.
#
# ## What next
#
# * [Read the live plot](05_live_plot.ipynb): is it learning, and how fast?
# * [How workers talk](08_talking.ipynb): what "comparing notes" is.
