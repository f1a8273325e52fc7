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
# # How workers talk
#
# **What you will see:** the four ways in which workers exchange numbers, as pictures made by real
# workers. And what happens if one of them stays away.
#
# **You need:** [why two workers](04_two_workers.ipynb). Eight minutes to read, fifteen seconds to run.

# %% [markdown]
# ## 1. A meeting
#
# Workers are separate programs. None can look into another one's memory. When they need something from
# each other, they hold a **meeting**: every worker brings some numbers, and every worker goes home with
# some numbers. Programmers call such a meeting a **collective**.
#
# A worker has a number, its **rank**, counted from 0. The numbers that it brings lie in a row, its
# **buffer**.
#
# The playground starts real workers, lets them meet once, and draws what each of them held before and
# after. The small print below a number, and the colors, say which ranks it comes from.

# %%
from notebook_accel import playground

# %% [markdown]
# ## 2. Everybody gets the sum
#
# This is the meeting that training needs most. **Before you run:** rank 0 brings 1, 2, 3. Rank 1 brings
# 11, 12, 13. Rank 2 brings 21, 22, 23. They add up, place by place. What does rank 1 hold at the end?
#
# * a. 33, 36, 39
# * b. 36 (only its own place)
# * c. 11, 12, 13 (only rank 0 gets the sum)

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


summed = playground.all_reduce(num_ranks=3)
print(compare(guess, "a" if summed.after[1] == (33, 36, 39) else "b"))
summed

# %% [markdown]
# `all_reduce`: *reduce* many numbers to one, for *all*. This is how workers "compare notes" after each
# step. Each has worked out how it would turn the knobs. They add it up, divide by the number of
# workers, and all turn the knobs in the same way. So their networks stay equal.

# %%
assert summed.after[0] == summed.after[1] == summed.after[2], "All hold the same."
one, two, three = (row[0] for row in summed.before)
assert summed.after[0][0] == one + two + three

# %% [markdown]
# ## 3. Everybody gets everything

# %%
gathered = playground.all_gather(num_ranks=3)
gathered

# %% [markdown]
# `all_gather` adds nothing up. It lays the buffers in a row, in the order of the ranks. You met it in
# the quickstart: `accelerator.gather_for_metrics` puts the workers' exam results together that way.

# %%
assert gathered.after[0] == gathered.before[0] + gathered.before[1] + gathered.before[2]

# %% [markdown]
# ## 4. The sum, cut into pieces
#
# **Before you run:** four ranks bring four numbers each. They add up, place by place, and each rank
# takes home only its own piece of the sum. How many numbers does each hold then?

# %%
guess = None  # write a number

# %%
pieces = playground.reduce_scatter(num_ranks=4)
print(compare(guess, len(pieces.after[0])))
pieces

# %% [markdown]
# `reduce_scatter` is for networks that are too large for one device. No rank needs the whole sum, if
# each takes care of a quarter of the knobs. And look: `reduce_scatter` and then `all_gather` would
# give everybody the whole sum, like `all_reduce`.

# %%
put_together = tuple(number for piece in pieces.after for number in piece)
assert put_together == playground.all_reduce(num_ranks=4).after[0], "Two meetings in place of one."

# %% [markdown]
# ## 5. One speaks, all listen

# %%
playground.broadcast(num_ranks=3, source=1)

# %% [markdown]
# `broadcast` copies. At the very beginning, rank 0 sends its network to the others that way, so that
# all start equal.
#
# ## 6. Play
#
# Where the page can show controls, pick a meeting, write other numbers into the fields, and press
# *Run it*. Guess the answer each time before you press. (In a page without controls you see the first
# question only; change the calls above instead.)

# %%
playground.show("all_reduce", num_ranks=3)

# %% [markdown]
# ## 7. One stays away
#
# A meeting begins when *everybody* is there. What if rank 1 has something else to do? The others wait.
# They cannot know that it will never come.
#
# **Before you run:** what will you see?
#
# * a. the sum of the other two
# * b. nothing, for ever
# * c. a message that says who waits, where, and for whom

# %%
guess = None  # write "a", "b" or "c"

# %%
stuck = playground.all_reduce(num_ranks=3, absent=[1])
print(compare(guess, "a" if stuck.after else "c"))
stuck

# %% [markdown]
# Without a toolkit the answer is b. Here somebody watches: the notebook sees that rank 1 has gone home
# while others wait for it, ends the run, and says so.

# %%
assert stuck.after is None, "Nobody got a sum."
assert "rank 1" in str(stuck.error), "The one who stayed away is named."

# %% [markdown]
# The same in a loop of your own. Each rank goes to *another* meeting: rank 0 to `gather`, rank 1 to
# `wait_for_everyone`. It takes some three seconds until it is certain that neither can ever end.

# %%
import torch

from notebook_accel import Accelerator, RanksStuck, notebook_launcher


def two_meetings():
    accelerator = Accelerator()
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(1, device=accelerator.device))
    else:
        accelerator.wait_for_everyone()


try:
    notebook_launcher(two_meetings, num_processes=2, device="cpu")
except RanksStuck as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# **1.** Two ranks bring `[1, 2]` and `[10, 20]`. What does rank 0 hold after `all_reduce`? Write the
# list, then run.

# %%
answer = None  # write two numbers, like [3, 4]


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


tried = playground.all_reduce([[1, 2], [10, 20]])
check(answer and list(answer), list(tried.after[0]))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = [1 + 10, 2 + 20]  # place by place
assert answer == list(tried.after[0]) == list(tried.after[1])
tried

# %% [markdown]
# **2.** Two workers marked an exam. Worker 0 had 7 right of 10, worker 1 had 9 right of 10. Which
# meeting tells both of them how many were right in total? Write its name.

# %%
answer = None  # write "all_reduce", "all_gather", "reduce_scatter" or "broadcast"

# %%
exam = [[7, 10], [9, 10]]  # right, and seen, on each worker
held = {
    "all_reduce": playground.all_reduce(exam).after,
    "all_gather": playground.all_gather(exam).after,
    "reduce_scatter": playground.reduce_scatter(exam).after,
    "broadcast": playground.broadcast(exam).after,
}
if answer in held:
    print(f"worker 0 holds {held[answer][0]}, worker 1 holds {held[answer][1]}")
check(answer, next(name for name, after in held.items() if after == ((16, 20), (16, 20))))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "all_reduce"
assert held[answer][0] == held[answer][1] == (7 + 9, 10 + 10), "16 of 20, and both know it."

# %% [markdown]
# **3.** Two ranks bring buffers of different lengths to `all_reduce`: `[[1, 2], [3]]`. Does it work, or are
# they stuck?

# %%
answer = None  # write "works" or "stuck"

# %%
uneven = playground.all_reduce([[1, 2], [3]])
check(answer, "stuck" if uneven.error else "works")

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "stuck"
assert uneven.after is None and "different sizes" in str(uneven.error), "Read what it says."
uneven

# %% [markdown]
# ## Remember
#
# * A collective is a meeting: everybody brings numbers, everybody goes home with numbers.
# * `all_reduce` sums for all, `all_gather` collects for all, `reduce_scatter` sums and cuts,
#   `broadcast` copies from one.
# * All ranks must come to the same meeting, with buffers of the same length.
#
# ## What next
#
# * [What went wrong?](07_errors.ipynb) has more about workers that wait for each other.
# * [How it works](../../docs/architecture.md): the programs behind a launch.
