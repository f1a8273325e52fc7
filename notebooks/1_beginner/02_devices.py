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
# # Pick the chip that does the work
#
# **What you will see:** which chips this computer has for training, how one word in the launch picks
# one of them, and when a fast chip is worth it.
#
# **You need:** [the quickstart](01_quickstart.ipynb). Six minutes to read, ten seconds to run.

# %% [markdown]
# ## 1. What is a device?
#
# Training is arithmetic: millions of small multiplications and sums. A **device** is a chip that can
# do them. Every computer has one: the **CPU**, the chip that runs all your programs. It is a good
# all-rounder with a few strong cores.
#
# Some computers also have a **GPU**, a chip made for pictures in games. It has thousands of weak
# cores that all do the same thing at the same time, and training is exactly that. It has a memory of
# its own, and that is the catch: numbers must be copied there before it can work on them.
#
# What does this computer have? The next cell looks. It opens nothing and starts nothing.

# %%
from notebook_accel import DevicePicker

DevicePicker()

# %% [markdown]
# ## 2. Your loop does not name a device
#
# A loop that says "GPU 0" fails on a computer without one. So leave the choice to the launch. Inside
# the function you ask the `Accelerator` which device is yours: it knows.

# %%
import time

import torch

from notebook_accel import Accelerator, notebook_launcher

SIZES = [64, 256, 1024]  # how many rows and columns the tables of numbers have


def measure():
    accelerator = Accelerator()
    device = accelerator.device
    seconds = []
    for size in SIZES:
        table = torch.rand(size, size, device=device)
        tries = []
        for _ in range(6):
            began = time.perf_counter()
            (table @ table).sum().item()  # .item() waits until the device is done
            tries.append(time.perf_counter() - began)
        seconds.append(min(tries))  # the first try is always slow
    return device.type, seconds


# %% [markdown]
# ## 3. One word picks
#
# `device="cpu"` takes the CPU, whatever else is there. `device="auto-or-cpu"` takes GPUs if there are
# enough of them, and the CPU if not. That is the word for notebooks that other people run, too.
#
# **Before you run:** on which device will the second launch of the next cell work here?
#
# * a. the CPU
# * b. a GPU
#
# Look at what the picker found above, and write your guess down.

# %%
guess = None  # write "a" or "b"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


on_cpu = notebook_launcher(measure, num_processes=1, device="cpu")
on_best = notebook_launcher(measure, num_processes=1, device="auto-or-cpu")

cpu_device, cpu_seconds = on_cpu[0]
best_device, best_seconds = on_best[0]
assert cpu_device == "cpu", "You asked for the CPU, so the CPU did the work."

print(f"first launch: {cpu_device}, second launch: {best_device}")
print(compare(guess, "a" if best_device == "cpu" else "b"))

# %% [markdown]
# The same `measure` worked in both launches, and you changed no line of it.
#
# ## 4. When is a fast chip worth it?
#
# Multiplying two tables of numbers is what a network does all day. Here is how long it took, for
# small tables and large ones. (If this computer has no GPU, both bars are the CPU, and they are about
# equal. That is fine: read on, the numbers of a typical GPU are in the text.)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3))
places = range(len(SIZES))
axes.bar([p - 0.2 for p in places], [1000 * s for s in cpu_seconds], 0.38, color="#1763a6")
axes.bar(
    [p + 0.2 for p in places], [1000 * s for s in best_seconds], 0.38, color="#b04a00", hatch="//"
)
axes.set_xticks(list(places), [f"{size} x {size}" for size in SIZES])
axes.set_yscale("log")
axes.set_xlabel("size of the tables")
axes.set_ylabel("milliseconds")
axes.set_title("Large tables take longer")
axes.legend([f"{cpu_device} (first launch)", f"{best_device} (second launch)"])
plt.show()

# %% [markdown]
# A typical GPU needs about a hundredth of a millisecond to *start* anything. A small table is done on
# the CPU by then. For the large table a GPU is ten to a hundred times faster than a CPU. So:
#
# * tiny network, few pictures: the CPU is fine, and often faster,
# * large network, large pictures: a GPU saves hours.
#
# ## 5. The notebook itself stays light
#
# There is one more thing to see. A GPU has little memory, and whoever opens it keeps a part of it. The
# work was done by a worker, a helper program that ended with the launch. The notebook itself never
# opened the GPU, so all of its memory is free again.

# %%
assert not torch.cuda.is_initialized(), "This notebook has not opened a GPU."
print("No GPU is held by this notebook.")

# %% [markdown]
# ## 6. A mistake worth making
#
# You may name GPUs by their numbers, in a list. What if you ask for one that is not there?

# %%
try:
    notebook_launcher(measure, num_processes=1, device=[99])
except ValueError as error:
    print(error)

# %% [markdown]
# Nothing was started. The message says what is wrong, why, and what to do.
#
# ## Exercises
#
# **1.** You share a computer with four GPUs. They are counted from 0. A friend uses the first two. You
# want the other two. Which list do you write for `device=...`?

# %%
answer = None  # write the list here, like [7, 9]


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


all_four, the_friends = range(4), [0, 1]
left = [number for number in all_four if number not in the_friends]
check(answer and sorted(answer), left)  # in any order

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = [2, 3]  # counted from 0, the third and the fourth are 2 and 3
assert answer == left
print(f"notebook_launcher(main, num_processes=2, device={answer})")

# %% [markdown]
# ## Remember
#
# * A device is a chip that does the arithmetic: a CPU, or a GPU if there is one.
# * Your function asks `accelerator.device`; the launch decides.
# * `device="auto-or-cpu"` runs everywhere.
# * Small work is as fast on a CPU.
#
# ## What next
#
# * [One loop for any hardware](03_one_loop.ipynb): why four lines are enough.
# * [The quickstart](01_quickstart.ipynb) again, if you skipped it.
