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
# # One loop for any hardware
#
# **What you will see:** one training loop that runs alone, then shared by two workers, and gives the
# same curve both times.
#
# **You need:** [the quickstart](01_quickstart.ipynb). Eight minutes to read, fifteen seconds to run.
#
# The same subject at other depths: [for developers](../2_developer/01_one_loop.ipynb) ·
# [for researchers](../3_researcher/01_one_loop.ipynb).

# %% [markdown]
# ## 1. Why it exists
#
# You write a training loop on your laptop. It works. Then somebody gives you a computer with two GPUs,
# and the trouble starts: who loads which pictures? How do two copies of the network stay the same?
# Which of the two prints, which one saves? People used to write the whole program again for that, and
# once more for the next computer.
#
# You do not want two programs. You want **one loop** that asks where it is.
#
# ## 2. How it works, in a kitchen
#
# You cook alone from a recipe card. Then a friend comes to help. You do not write a new recipe. You
# need a kitchen manager, who does three things:
#
# 1. **hands out the work**: you cut these carrots, your friend cuts those,
# 2. **keeps you together**: after each step you compare, so that both taste the same soup,
# 3. **speaks for the kitchen**: one voice tells the guests that dinner is ready.
#
# The `Accelerator` is that manager. Alone in the kitchen, it does nothing and is not in the way. The
# recipe card stays the same.
#
# | in the kitchen | in your loop |
# | --- | --- |
# | hands out the work | `accelerator.prepare(model, optimizer, loader)` |
# | keeps you together | `accelerator.backward(loss)` |
# | speaks for the kitchen | `accelerator.print(...)` |
#
# A **worker** is one helper: a copy of your function that runs as a program of its own.

# %% [markdown]
# ## 3. An everyday example
#
# How long does a bus ride take? It depends on how far you go, on the rain, and on the hour. Here are
# 512 rides that a company wrote down. (We make them up, so that nothing has to be downloaded.)

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

chance = torch.Generator().manual_seed(0)
km = 1 + 9 * torch.rand(512, generator=chance)
rain = (torch.rand(512, generator=chance) < 0.3).float()
rush_hour = (torch.rand(512, generator=chance) < 0.4).float()
minutes = 4 + 3 * km + 5 * rain + 8 * rush_hour + torch.randn(512, generator=chance)

rides = TensorDataset(torch.stack([km, rain, rush_hour], dim=1), minutes)
print(f"the first ride: {km[0]:.1f} km, rain {rain[0]:.0f}, rush hour {rush_hour[0]:.0f}", end="")
print(f" -> {minutes[0]:.0f} minutes")

# %% [markdown]
# ## 4. The loop
#
# This is the whole recipe card. It does not say how many cooks there are, and it names no device.
#
# `together` is how many rides the kitchen looks at before everybody turns the knobs. Alone you take
# all of them, two workers take half each. So we divide by the number of workers: that way a step is
# the same amount of work, whoever does it.

# %%
from notebook_accel import Accelerator, notebook_launcher


def learn_rides(together=32):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    loader = DataLoader(rides, batch_size=together // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for _ in range(12):
        for facts, took in loader:
            optimizer.zero_grad()
            loss = (model(facts).squeeze(1) - took).abs().mean()  # minutes off, on average
            accelerator.backward(loss)
            optimizer.step()

    accelerator.print(f"the loop ran in {accelerator.num_processes} worker(s)")
    return model


# %% [markdown]
# ## 5. Run it alone, then together
#
# **Before you run:** the last line of the function prints. How many lines will the second launch, with
# two workers, print?
#
# * a. one
# * b. two

# %%
guess = None  # write "a" or "b"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


alone = notebook_launcher(learn_rides, num_processes=1, device="auto-or-cpu")

# %%
together = notebook_launcher(learn_rides, num_processes=2, device="auto-or-cpu")

lines = "".join(together.logs).count("the loop ran")
print(compare(guess, "a" if lines == 1 else "b"))

# %% [markdown]
# One voice for the kitchen. Nothing in `learn_rides` changed between the two launches, only
# `num_processes`.
#
# ## 6. Did they learn the same?
#
# Lay the two curves over each other. If the manager does the job, you cannot tell them apart.

# %%
import matplotlib.pyplot as plt

one, two = alone.history["loss"], together.history["loss"]

plt.figure(figsize=(7, 3))
plt.plot(one, color="#1763a6", linewidth=5, alpha=0.4, label="1 worker")
plt.plot(two, color="#b04a00", linestyle="dashed", label="2 workers")
plt.xlabel("step")
plt.ylabel("minutes off")
plt.title("Alone or together: the same curve")
plt.legend()
plt.show()

apart = max(abs(a - b) for a, b in zip(one, two, strict=True))
print(f"{len(one)} steps, and the curves are never more than {apart:.4f} minutes apart")

assert len(one) == len(two), "The same number of steps."
assert apart < 0.05, "And the same loss at each of them."
assert two[-1] < two[0] / 2, "It learned: the loss fell by more than half."

# %% [markdown]
# Ask the trained network about a ride of 5 km, in the rain, at rush hour. The made-up rides follow the
# rule 4 + 3 x 5 + 5 + 8 = 32 minutes.

# %%
model = together[0]
with torch.no_grad():
    answer = model(torch.tensor([[5.0, 1.0, 1.0]])).item()
print(f"5 km, rain, rush hour: about {answer:.0f} minutes")
assert abs(answer - 32) < 3, "It should have found the rule, within 3 minutes."

# %% [markdown]
# ## 7. A mistake worth making
#
# You already have a loop. It says `loss.backward()` in the old way. You forget to change that one
# line. What then? The next function is the same, with that mistake in it.


# %%
def forgetful():
    accelerator = Accelerator()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(rides, batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for facts, took in loader:
        optimizer.zero_grad()
        loss = (model(facts).squeeze(1) - took).abs().mean()
        loss.backward()  # the old line
        optimizer.step()
    return model


forgot = notebook_launcher(forgetful, num_processes=2, device="auto-or-cpu")

# %% [markdown]
# The toolkit noticed. It says which line, why it matters, and what to write instead.

# %%
said = "".join(forgot.logs)
assert "accelerator.backward" in said, "The message names the line to write."

# %% [markdown]
# ## Exercises
#
# **1.** With `together=32` there are 16 steps for each of the 12 rounds: 192 steps. How many steps are
# there with `together=64`? Think first, then check.

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


def handfuls(together):
    """How many handfuls of rides a worker has in a round: before `prepare`, and after it."""
    accelerator = Accelerator()
    loader = DataLoader(rides, batch_size=together // accelerator.num_processes)
    return len(loader), len(accelerator.prepare(loader))


before, after = notebook_launcher(handfuls, (64,), num_processes=2, device="auto-or-cpu")[0]
check(answer, 12 * after)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 512 // 64 * 12  # 8 handfuls of 64 rides make one round, and there are 12 rounds
bigger = notebook_launcher(learn_rides, args=(64,), num_processes=2, device="auto-or-cpu")
assert answer == len(bigger.history["loss"])
check(answer, 12 * after)

# %% [markdown]
# **2.** The four lines that make a loop portable: which one hands out the work? Write its name, with
# nothing else.

# %%
answer = None  # write "Accelerator", "prepare", "backward" or "print"

# %%
check(answer, "prepare" if after < before else "print")

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "prepare"
assert 2 * after == before, "Behind `prepare`, each of two workers has half of the handfuls."
print(
    f"{before} handfuls of 32 rides before accelerator.{answer}, {after} of them for each after it"
)

# %% [markdown]
# ## Remember
#
# * One loop. The launch says how many workers and which devices.
# * `prepare` hands out the work, `backward` keeps the workers together, `print` speaks once.
# * Same handful in total, same curve: alone or together.
#
# ## What next
#
# * [Why two workers](04_two_workers.ipynb): what you gain, and when you gain nothing.
# * [The same for developers](../2_developer/01_one_loop.ipynb): the whole loop, counting, accumulation.
# * Which names there are, and where they differ from Accelerate's: [differences](../../docs/differences.md)
