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
# # Pipelines: divide a model by its depth, and fill the bubble with micro-batches
#
# **What you will see.** Two ranks that hold half of a model each, the time in which one of them
# waits, a formula for it, and the schedule that keeps memory small.
#
# **You need** [one loop on any hardware](01_one_loop.ipynb). About 15 minutes to read, half a
# minute to run.

# %% [markdown]
# ## 1. Stages
#
# Cut a model of $L$ layers into $S$ **stages** of consecutive layers, one on each rank. Only
# activations at the cuts travel, once forward and once backward: far fewer bytes than gradients
# or summands. But stage 2 cannot begin before stage 1 has finished, and stage 1 cannot go
# backward before stage 2 has.
#
# **The bubble**: with a single batch, only one of $S$ stages works at any moment. So the batch
# is cut into $M$ **micro-batches**, and stages work on different ones. A forward and a backward
# of each micro-batch on each stage take $M$ slots; filling and draining take $S - 1$ more. The
# share of waiting is
#
# $$\text{bubble} = \frac{S-1}{M+S-1}.$$

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from notebook_accel import Accelerator, Pipeline, notebook_launcher


def schedule(S, M, one_forward_one_backward):
    """When each stage does what: a list of (time, stage, "F" or "B", micro-batch)."""
    done, plan, time = {}, [], 0
    counts = [{"F": 0, "B": 0} for _ in range(S)]
    while any(c["B"] < M for c in counts):
        chosen = []
        for s in range(S):
            f, b = counts[s]["F"], counts[s]["B"]
            can_f = f < M and (s == 0 or done.get((s - 1, "F", f), time) < time)
            can_b = b < f and (s == S - 1 or done.get((s + 1, "B", b), time) < time)
            if one_forward_one_backward:
                can_f = can_f and f - b < S - s  # no more micro-batches in flight than needed
            else:
                can_b = can_b and f == M  # GPipe: all forwards, then all backwards
            if can_b or can_f:
                kind = "B" if can_b else "F"
                chosen.append((s, kind, counts[s][kind]))
        for s, kind, m in chosen:
            done[s, kind, m] = time
            counts[s][kind] += 1
            plan.append((time, s, kind, m))
        time += 1
    return plan


# %%
def draw(plot, plan, title):
    for time, s, kind, m in plan:
        plot.barh(
            s,
            1,
            left=time,
            color="#1763a6" if kind == "F" else "#b04a00",
            edgecolor="white",
            hatch="" if kind == "F" else "//",
        )
        plot.text(time + 0.5, s, m, ha="center", va="center", color="white", fontsize=7)
    S = 1 + max(s for _, s, _, _ in plan)
    plot.set(title=title, yticks=range(S), ylabel="stage")
    plot.invert_yaxis()


figure, plots = plt.subplots(3, 1, figsize=(7, 5), sharex=True, layout="constrained")
draw(plots[0], schedule(4, 1, False), "1 micro-batch: one stage works, three wait")
draw(
    plots[1],
    schedule(4, 6, False),
    "GPipe, 6 micro-batches: all forwards (plain), then all backwards (hatched)",
)
draw(plots[2], schedule(4, 6, True), "1F1B: a backward as soon as one can be")
plots[2].set_xlabel("slot")
plt.show()

# %% [markdown]
# **Predict before you run.** With 4 stages and 12 micro-batches, what share of the slots is
# spent waiting? a. a third · b. a fifth · c. a tenth


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"


# %%
def bubble(plan, S):
    """The share of slots in which a stage waits, forwards and backwards being one slot each."""
    slots = 1 + max(time for time, *_ in plan)
    return 1 - len(plan) / (S * slots)


share = bubble(schedule(4, 12, False), 4)
print(
    compare(guess, min("abc", key=lambda c: abs({"a": 1 / 3, "b": 1 / 5, "c": 1 / 10}[c] - share)))
)
for M in (1, 4, 12, 32):
    counted, formula = bubble(schedule(4, M, False), 4), 3 / (M + 3)
    print(f"M = {M:2}: counted {counted:.3f}, formula {formula:.3f}")
    assert abs(counted - formula) < 1e-9


# %% [markdown]
# ## 2. What 1F1B is for
#
# Its bubble is the same. What it saves is memory: a stage keeps the activations of each
# micro-batch whose backward is still to come. GPipe keeps all $M$, 1F1B at most $S$ (Narayanan
# et al. 2019, "PipeDream").


# %%
def most_in_flight(plan, stage):
    alive = most = 0
    for _, s, kind, _ in sorted(plan):
        if s == stage:
            alive += 1 if kind == "F" else -1
            most = max(most, alive)
    return most


for M in (4, 12, 32):
    gpipe, ours = (most_in_flight(schedule(4, M, way), 0) for way in (False, True))
    print(f"M = {M:2}: stage 0 keeps {gpipe:2} micro-batches under GPipe, {ours} under 1F1B")
    assert (gpipe, ours) == (M, min(M, 4))

# %% [markdown]
# ## 3. For real
#
# One call takes the place of forward, loss and backward, because the three are interleaved now:
# `accelerator.forward_backward(model, (inputs, targets), loss_fn)`. Every strategy has it.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)


def train(num_steps=30):
    accelerator = Accelerator()
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05))
    numbers = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(num_steps):
        x = torch.randn(24, 32, generator=numbers)
        optimizer.zero_grad()
        batch = (x, x[:, :4].argmax(1))
        loss = accelerator.forward_backward(model, batch, nn.functional.cross_entropy)
        optimizer.step()
        losses.append(loss.item())
    return losses


one = notebook_launcher(train, num_processes=1, device="cpu")[0]
two = notebook_launcher(
    train, num_processes=2, device="cpu", strategy=Pipeline(stages=2, num_microbatches=4)
)[0]
print(f"last loss on one rank {one[-1]:.5f}, in two stages {two[-1]:.5f}")
assert max(abs(p - q) for p, q in zip(one, two, strict=True)) < 1e-4, (
    "Stages compute the same losses."
)

# %% [markdown]
# ## Exercises
#
# **1.** 8 stages. How many micro-batches keep the bubble at 10 % or less?

# %%
answer = None  # write the smallest such number


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


truth = next(M for M in range(1, 1000) if bubble(schedule(8, M, False), 8) <= 0.1)
check(answer, truth)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = (8 - 1) * 9  # 7 slots of waiting are a tenth of 70: 63 are left for micro-batches
print(answer)
assert answer == truth, "Drawn slot by slot and counted, it is the first that is small enough."

# %% [markdown]
# **2.** A backward takes about twice as long as a forward. Does this change the bubble of GPipe?
# Work it out for S stages and M micro-batches. It is compared with a clock that follows each
# micro-batch.


# %%
def bubble_with(S, M, forward=1, backward=2):
    """The share of waiting when a backward takes ``backward`` and a forward ``forward``."""
    ...


# %%
def clocked(S, M, forward, backward):
    """The share of waiting under GPipe, from when each micro-batch leaves each stage."""
    free = [0.0] * S  # when a stage is free again
    for stages, takes in ((range(S), forward), (reversed(range(S)), backward)):
        stages, came = list(stages), [0.0] * M
        for m in range(M):
            for s in stages:
                free[s] = came[m] = max(free[s], came[m]) + takes
    return 1 - M * (forward + backward) / max(free)


def check_bubble(function):
    """Compare it with the clock."""
    for case in ((4, 12, 1, 1), (4, 12, 1, 2), (2, 1, 1, 2), (8, 3, 2, 5)):
        found, truth = function(*case), clocked(*case)
        if found is None:
            return "Not answered yet."
        if abs(found - truth) > 1e-9:
            return f"Not right: bubble_with{case} gave {found:.3f} in place of {truth:.3f}."
    return "Yes, as the clock says."


print(check_bubble(bubble_with))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def bubble_with_solution(S, M, forward=1, backward=2):
    whole = (M + S - 1) * (forward + backward)
    return 1 - M * (forward + backward) / whole


print(f"{bubble_with_solution(4, 12, 1, 1):.3f} and {bubble_with_solution(4, 12, 1, 2):.3f}")
assert check_bubble(bubble_with_solution).startswith("Yes"), (
    "It does not change: both phases fill and drain alike."
)

# %% [markdown]
# ## Remember
#
# - A pipeline sends little and waits: $(S-1)/(M+S-1)$ of the time.
# - More micro-batches shrink the bubble; 1F1B keeps at most S of them in memory.
# - Several small stages on each rank ("interleaved") fill it further, for more messages.
#
# ## What next
#
# - [Numbers in 16 and 8 bits](10_numerics.ipynb)
# - [Models that do not fit](../../docs/guides/strategies.md)
