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
# # Read the live plot
#
# **What you will see:** the curve of a run that learns well, of one that is too careful, of one that is
# too bold, and of one that breaks; and what to change in each case.
#
# **You need:** [one loop for any hardware](03_one_loop.ipynb). Seven minutes to read, fifteen seconds
# to run.

# %% [markdown]
# ## 1. What the plot shows
#
# While a run goes on, its cell shows a picture. You write no code for it. It has four parts:
#
# * **the line at the top**: where the run is, how fast it goes, how long it will take,
# * **the curve**: how wrong the network is, step by step. This number is the **loss**. Down is good,
# * **a line for each worker**: how far it is, whether it waits, and how much memory it uses. (Memory is
#   looked at once a second, on Linux: a worker that is done sooner may show none.)
# * **a red mark**, if something needs you now.
#
# We teach a network to read digits again. The only thing that changes from run to run is the
# **learning rate**: how far the knobs are turned at each step.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

digits = load_digits()
pictures = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
to_learn = TensorDataset(pictures[:1500], labels[:1500])
exam_pictures, exam_labels = pictures[1500:], labels[1500:]


def learn(learning_rate, rounds=6, width=64):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loader = DataLoader(to_learn, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for _ in range(rounds):
        for picture, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(picture), label)
            accelerator.backward(loss)
            optimizer.step()
        with torch.no_grad():
            guess = model(exam_pictures.to(accelerator.device)).argmax(dim=1).cpu()
        accelerator.log({"accuracy": (guess == exam_labels).float().mean().item()})


# %% [markdown]
# ## 2. A good curve
#
# `accelerator.log({"accuracy": ...})` adds a second curve: the part of the exam pictures that the
# network reads correctly. The exam pictures are never used for learning.

# %%
good = notebook_launcher(learn, args=(0.3,), num_processes=2, device="auto-or-cpu")

# %% [markdown]
# Read it from left to right. At first the network guesses among ten digits: the loss is about 2.3. It
# falls fast, then more and more slowly. The curve trembles, because each step sees other pictures. The
# accuracy rises at the same time. **Down fast, then flat, with the accuracy going up: leave it alone.**

# %%
losses, accuracy = good.history["loss"], good.history["accuracy"]

assert losses[-1] < losses[0] / 2, "The loss fell by more than half."
assert accuracy[-1] > accuracy[0], "And the last exam went better than the first."
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, accuracy {accuracy[-1]:.0%}")

# %% [markdown]
# ## 3. Too careful
#
# Now the knobs are turned a hundred times less at each step.
#
# **Before you run:** what will the curve look like?
#
# * a. the same, only smoother
# * b. it falls so slowly that it is still near 2.3 at the end
# * c. it goes up

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def end_of(run):
    """The loss at the end: the mean of the last 20, for it trembles."""
    return sum(run.history["loss"][-20:]) / 20


careful = notebook_launcher(learn, args=(0.003,), num_processes=2, device="auto-or-cpu")
end = end_of(careful)
print(compare(guess, "c" if end > 2.5 else "b" if end > 1.5 else "a"))

# %% [markdown]
# **A curve that falls in a straight, gentle line has not arrived.** Turn the knobs further (a larger
# learning rate) or let it run longer.
#
# ## 4. Too bold
#
# And now three hundred times more than in the good run.

# %%
bold = notebook_launcher(learn, args=(90.0,), num_processes=2, device="auto-or-cpu")

# %% [markdown]
# The loss jumped up instead of going down: each step turned the knobs so far that the network got
# worse. The accuracy is that of guessing, about 10 %.
#
# Look at the numbers on the left: each line is ten times the line below it (10² is 100, 10⁶ is a
# million). The plot changes to such an axis by itself when the numbers differ so much that small ones
# would lie on the ground.
#
# You need not wait for the end of such a run: **press the square stop button**, make the learning rate
# ten times smaller, and launch again. The curve up to there stays on record (section 6), and the model
# as it was then can still be had: [Stopping it](../../docs/guides/failures.md#stopping-it).

# %%
highest = max(bold.history["loss"])
assert highest > 10, "Guessing would be 2.3. This is far worse than guessing."
print(f"the loss went up to {highest:,.0f}")

# %% [markdown]
# ## 5. The red mark
#
# One of the 1,500 pictures is damaged: a dot in it is no number. Everything else is as in the good run.
# Watch the line above the picture.

# %%
damaged = pictures.clone()
damaged[700, 0] = float("nan")  # "not a number"
to_learn = TensorDataset(damaged[:1500], labels[:1500])

broken = notebook_launcher(learn, args=(0.3,), num_processes=2, device="auto-or-cpu")

to_learn = TensorDataset(pictures[:1500], labels[:1500])  # the good pictures again

# %% [markdown]
# The mark says what happened (`loss is nan`), at which step, and which worker said so first (*rank* is
# the worker's number). Until then all went well. Then the damaged picture came, and every number that it
# touched became "not a number" as well: also those of the other worker, one step later, for they compare
# notes. Look for the cause in what the workers read at that step and at the one before.

# %%
from math import isnan

first_bad = next(step for step, loss in enumerate(broken.history["loss"]) if isnan(loss))
assert isnan(broken.history["loss"][-1]), "A broken network does not recover."
print(f"{first_bad} good steps, then none")

# %% [markdown]
# ## 6. Side by side
#
# Every run is kept on record, also the ones that failed. `runs.compare` draws them into one picture.

# %%
from notebook_accel import runs

runs.compare(good, careful)

# %% [markdown]
# Each curve has a label: the last three letters of the run's name, its last loss, and what it was asked
# for differently than the other. Below the picture, names begin with the day and the time.
#
# The record is there tomorrow as well. `runs.list()` shows all of them, `good.show()` shows the picture
# of one again, and `good.report("report.html")` writes it into a page that you can send to somebody.

# %% [markdown]
# ## Exercises
#
# **1.** A colleague's network is tiny: all that it knows of a picture must go through 2 numbers, where
# ours has 64. It learned for twelve rounds, twice as long as ours. Look at its curve. What do you
# advise?
#
# * a. wait longer
# * b. a larger network
# * c. nothing, it is perfect

# %%
tiny = notebook_launcher(learn, args=(0.3, 12, 2), num_processes=2, device="auto-or-cpu")

# %%
answer = None  # write "a", "b" or "c"


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


half_way, arrived = tiny.history["accuracy"][5], tiny.history["accuracy"][11]
by_waiting, by_size = arrived - half_way, good.history["accuracy"][5] - half_way
truth = "c" if arrived > 0.9 else "b" if by_size > by_waiting else "a"
check(answer, truth)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "b"  # the curve is nearly flat, so waiting brings little; and few digits are read
assert answer == truth
print(
    f"six rounds more: {by_waiting:+.0%} read correctly; 64 numbers in place of 2: {by_size:+.0%}"
)

# %% [markdown]
# **2.** Find a learning rate that ends better than 0.003 and worse than 0.3. Write it down, run both
# cells, and look where your curve lies.

# %%
mine = None  # write a learning rate


# %%
def check_between(learning_rate):
    if learning_rate is None:
        return "Not answered yet."
    tried = notebook_launcher(learn, args=(learning_rate,), num_processes=2, device="auto-or-cpu")
    ended, best, worst = end_of(tried), end_of(good), end_of(careful)
    if best < ended < worst:
        return f"Yes: {learning_rate} ends at a loss of {ended:.2f}."
    return f"Not {learning_rate}: it ends at {ended:.2f}, in place of {best:.2f} to {worst:.2f}."


print(check_between(mine))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
mine = 0.03  # ten times more than careful, ten times less than good
said = check_between(mine)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# ## Remember
#
# * Down fast, then flat, and the accuracy rises: good.
# * A straight gentle slope: too careful. Use a larger learning rate, or wait.
# * Up: too bold. Press stop, use a smaller learning rate.
# * A red mark: something broke at that step, on that worker. Look at the data.
#
# ## What next
#
# * [Save and use your model](06_saving.ipynb): it has learned something, so keep it.
