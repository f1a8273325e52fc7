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
# # What went wrong? Read an error
#
# **What you will see:** five things that go wrong when workers train, what the message looks like, and
# where in it the cure stands.
#
# **You need:** [the quickstart](01_quickstart.ipynb). Eight minutes to read, fifteen seconds to run.

# %% [markdown]
# ## 1. The shape of a message
#
# An **error** is a program that stops and says why. Our messages have three lines:
#
# ```text
# what happened, with the numbers
#   why: the reason behind it
#   do:  what you can change
# ```
#
# Read the last line first. Often that is all you need.
#
# Normally an error ends the cell. In this notebook we want to go on, so each cell catches its error and
# shows it with `show()`, which prints it the way the cell would.

# %%
import time

import torch
from IPython import get_ipython
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher


def show():
    """Show the error that was just caught, as the cell would."""
    get_ipython().showtraceback()


# %% [markdown]
# ## 2. A call that cannot be
#
# The most common mistake: round brackets after the function's name. With them you call the function
# *here*, and hand over what it returned.


# %%
def main():
    print("training...")


try:
    notebook_launcher(main(), num_processes=2, device="auto-or-cpu")
except ValueError as error:
    show()
    assert "notebook_launcher(main)" in str(error), "It shows the call to write."

# %% [markdown]
# The function ran here, in the notebook, and no worker was started. What can be known before the start is
# said before the start.
#
# ## 3. An error in your own code
#
# This function asks for the eleventh of ten names. Two workers run it, so the same error happens twice.
#
# **Before you run:** how many errors will you see, and of which kind?
#
# * a. two `IndexError`s, one from each worker
# * b. one `IndexError`
# * c. one error that says "a worker failed"

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def name_it(digit):
    return NAMES[digit]


def main():
    accelerator = Accelerator()
    accelerator.print("the work begins")
    return name_it(10)


try:
    notebook_launcher(main, num_processes=2, device="auto-or-cpu")
except Exception as error:
    show()
    print(compare(guess, "b" if type(error) is IndexError else "c"))

# %% [markdown]
# One error, with its own name. It shows your lines, not the toolkit's: start at the **last** arrow. That
# is where it happened. The lines above it say how the program got there.
#
# ## 4. One of the workers fails
#
# Only worker 1 fails here. Worker 0 would wait for it for ever. It does not have to: when one falls, all
# stop, and the one that fell is named.


# %%
def main():
    accelerator = Accelerator()
    if accelerator.process_index == 1:
        raise RuntimeError("I cannot read my pictures")
    accelerator.wait_for_everyone()


try:
    notebook_launcher(main, num_processes=2, device="auto-or-cpu")
except RuntimeError as error:
    show()
    assert "pictures" in str(error), "The worker's own words arrive."

# %% [markdown]
# ## 5. Workers that wait for each other
#
# This is the mean one. Worker 0 waits for something that worker 1 never does. No line is wrong, nothing
# crashes, and nothing happens. In many programs that lasts half an hour.
#
# Workers must do their common things **together**: `gather`, `wait_for_everyone`, `save_state`. Here
# only the main worker gathers.


# %%
def main():
    accelerator = Accelerator()
    score = torch.tensor([1.0], device=accelerator.device)
    if accelerator.is_main_process:
        accelerator.gather(score)  # worker 1 never comes here
    accelerator.wait_for_everyone()


began = time.perf_counter()
try:
    notebook_launcher(main, num_processes=2, device="auto-or-cpu")
except Exception as error:
    show()
    stuck = str(error)
print(f"found out after {time.perf_counter() - began:.0f} seconds")

assert "gather" in stuck and "rank 0" in stuck, "It says who waits, and where."

# %% [markdown]
# *Rank* is the number of a worker. Read: rank 0 is in `gather`, at this line; rank 1 is in
# `wait_for_everyone`, at that line. Each waits for the other. The cure stands below: take the call out
# of the `if`. In a drawing:

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 1.8))
for row, (call, start) in enumerate([("wait_for_everyone", 0.6), ("gather", 1.0)]):
    axes.barh(row, start, color="#1763a6")
    axes.barh(row, 4 - start, left=start, color="white", edgecolor="#b04a00", hatch="//")
    box = {"facecolor": "white", "edgecolor": "none"}
    axes.text(2.4, row, f"waits in {call}", ha="center", va="center", bbox=box)
axes.axvline(4, color="#24292f", linewidth=2)
axes.set_yticks([0, 1], ["rank 1", "rank 0"])
axes.set_xticks([])
axes.set_xlabel("time: both work (blue), then both wait; the line is where the toolkit steps in")
axes.set_title("Two workers in two different places")
plt.show()

# %% [markdown]
# ## 6. No error, but a warning
#
# Some mistakes stop nothing. The numbers only come out wrong, and nobody tells you. For those there
# are **guard rails**: warnings with the same three lines. This loop forgets to keep what `prepare`
# returns.


# %%
def main():
    accelerator = Accelerator()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8)
    accelerator.prepare(model, optimizer, loader)  # and where is the result?
    for (numbers,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(numbers.to(accelerator.device)).mean())
        optimizer.step()


warned = notebook_launcher(main, num_processes=2, device="auto-or-cpu")

# %%
said = "".join(warned.logs)
assert "prepare" in said, "The guard rail names the call."
assert "GuardRail" in said
print("the run went through, and the warning says what to look at")

# %% [markdown]
# ## 7. And afterwards
#
# After each of these errors the next cell ran. You never had to restart the kernel. Launch something
# that works:

# %%
again = notebook_launcher(lambda: "fine", num_processes=2, device="auto-or-cpu")
assert list(again) == ["fine", "fine"], "No restart, no leftovers."

# %% [markdown]
# ## Exercises
#
# **1.** Repair part 5. Worker 0 has the score 1, worker 1 has the score 2, and both want both of them.
# Both call your function. What stands in it?


# %%
def both_scores(accelerator, score):
    """Give the scores of both workers, on each of them."""
    ...


# %%
def check_scores(function):
    def main():
        accelerator = Accelerator()
        mine = torch.tensor([1.0 + accelerator.process_index], device=accelerator.device)
        return function(accelerator, mine)

    run = notebook_launcher(main, num_processes=2, device="auto-or-cpu")
    if run[0] is None and run[1] is None:
        return "Not answered yet."
    got = [None if scores is None else scores.tolist() for scores in run]
    if got == [[1, 2], [1, 2]]:
        return "Yes: each worker has both scores."
    return (
        f"Not right: from the scores 1 and 2 they have {got[0]} and {got[1]}, in place of [1, 2]."
    )


print(check_scores(both_scores))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def both_scores(accelerator, score):
    return accelerator.gather(score)  # no `if`: both workers come here


said = check_scores(both_scores)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# **2.** A cell on a computer with some GPUs ends with this message. You want all of its GPUs to work. What
# do you write for `num_processes=...`?

# %%
message = """ConfigError: num_processes=4, but 2 CUDA devices to use
  why: each rank needs an accelerator of its own
  do:  pass num_processes=2; or train on the CPU with device="cpu"
"""
print(message)

# %%
answer = None  # write the number for num_processes=...


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


told = message.split("do:")[1]  # what to do stands in the last line
check(answer, int(told.split("num_processes=")[1].split(";")[0]))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 2
assert f"pass num_processes={answer};" in message, "The last line says it."
assert f"but {answer} CUDA devices" in message, "And so does the first: a worker for each GPU."

# %% [markdown]
# ## Remember
#
# * Read the `do:` line first, then the last arrow.
# * The error you see is the first one that happened, from the worker that had it.
# * What workers do together, all of them must do: never inside `if accelerator.is_main_process`.
# * No restart. Change the cell and run it again.
#
# ## What next
#
# * [How workers talk](08_talking.ipynb): what `gather` and its family do, to play with.
# * [Questions that others asked](../../docs/faq.md)
