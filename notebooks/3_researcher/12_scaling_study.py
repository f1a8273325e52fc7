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
# # A scaling study: measure two ranks, fit a model, predict thousands
#
# **What you will see.** A step taken apart into computing and talking, a model of four numbers
# fitted to measurements on this machine, and what it says about a thousand ranks, with the ways
# in which it is wrong.
#
# **You need** [the ring](03_ring.ipynb) and least squares. About 20 minutes to read, about a
# minute to run. On the CPU: up to four processes of one thread.

# %% [markdown]
# ## 1. A model of a step
#
# A rank computes on $b$ samples and averages $P$ gradients with N - 1 others:
#
# $$T(b, P, N) \;=\; \underbrace{c_0 + c_1\, b}_{\text{compute}} \;+\; \underbrace{2(N-1)\,\alpha + 2\tfrac{N-1}{N} P \beta}_{\text{ring}} .$$
#
# - **Strong scaling**: the batch $B$ is fixed, $b = B/N$. Computing shrinks, talking does not:
#   the speedup ends (Amdahl 1967).
# - **Weak scaling**: $b$ is fixed, $B = bN$. Time per step should stay as it is; efficiency is
#   $T(1)/T(N)$ (Gustafson 1988).
#
# We measure compute and ring apart, because on this machine ranks also share cores, which real
# ranks with a device each do not.

# %%
import time
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import Accelerator, notebook_launcher


def make_net(width=256):
    return nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
    )


def timed(calls, num=15):
    """The least seconds that each of ``calls`` took, in ``num`` rounds of all of them."""
    least = [float("inf")] * len(calls)
    for _ in range(num):
        for place, call in enumerate(calls):
            began = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - began)
    return least


# %% [markdown]
# Two habits of measuring. We keep the *least* of many times: whatever else this machine does can
# only make a call longer. And we measure in rounds, so that a busy minute meets all sizes alike.
#
# ## 2. Compute, on one rank


# %%
def compute(batches):
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch):
        x, y = torch.randn(batch, 64), torch.randint(0, 10, (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return timed([partial(step, batch) for batch in batches])


batches = [8, 32, 128, 512, 2048]
seconds = np.array(notebook_launcher(compute, (batches,), num_processes=1, device="cpu")[0])
c1, c0 = np.polyfit(batches, seconds, 1, w=1 / seconds)
c1 = max(c1, 1e-12)  # on a very busy machine noise may win; then measure again
print(f"a step takes {c0 * 1e3:.2f} ms and {c1 * 1e6:.1f} microseconds a sample")

# %% [markdown]
# The bare time is wanted, so nothing was prepared.
#
# ## 3. Talking, on two, three and four ranks
#
# **Predict before you run.** An all-reduce of 4 kB and one of 4 MB, between two processes of
# this machine. How many times as long does the large one take? a. about 1000 · b. between 10 and
# 500 · c. less than 10


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"


# %%
def talk(sizes):
    Accelerator()
    return timed([partial(dist.all_reduce, torch.zeros(size)) for size in sizes])


sizes = [1_000, 10_000, 100_000, 300_000, 1_000_000]
talks = {n: notebook_launcher(talk, (sizes,), num_processes=n, device="cpu")[0] for n in (2, 3, 4)}
ratio = talks[2][-1] / talks[2][0]
print(compare(guess, "c" if ratio < 10 else "b" if ratio < 500 else "a"))
print(f"{ratio:.0f} times as long for 1000 times the bytes: small messages pay for their number")

# %% [markdown]
# ## 4. The fit
#
# $\alpha$ and $\beta$ enter linearly, so least squares finds them. Times spread over three
# powers of ten; relative errors are what we want small, so each row is divided by its time, as
# `w=1 / seconds` did above.

# %%
rows, times = [], []
for n, measured in talks.items():
    for P, t in zip(sizes, measured, strict=True):
        rows.append([2 * (n - 1), 2 * (n - 1) / n * P])
        times.append(t)
A, t = np.array(rows), np.array(times)
(alpha, beta), *_ = np.linalg.lstsq(A / t[:, None], np.ones_like(t), rcond=None)
alpha, beta = max(alpha, 0.0), max(beta, 1e-12)
print(
    f"alpha = {alpha * 1e6:.0f} microseconds a round, beta = {beta * 1e9:.2f} ns a number "
    f"({4 / beta / 1e9:.2f} GB/s)"
)

figure, plot = plt.subplots(figsize=(7, 3))
for (n, measured), mark in zip(talks.items(), "osv", strict=True):
    (line,) = plot.plot(sizes, np.array(measured) * 1e3, mark, label=f"{n} ranks, measured")
    fitted = [2 * (n - 1) * alpha + 2 * (n - 1) / n * P * beta for P in sizes]
    plot.plot(sizes, np.array(fitted) * 1e3, color=line.get_color(), alpha=0.6)
plot.set(
    title="Two numbers describe the ring (lines: the fit)",
    xscale="log",
    yscale="log",
    xlabel="numbers averaged",
    ylabel="milliseconds",
)
plot.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## 5. Extrapolate
#
# Now the same model with numbers of a cluster, beside those of this machine: devices of 100
# trillion operations a second, links of 50 GB/s with 10 microseconds a round, and a model of 100
# million parameters whose step costs $6P$ operations a sample.

# %%
P = 100e6
machines = {
    "this machine": {
        "sample": c1 * P / sum(p.numel() for p in make_net().parameters()),
        "alpha": alpha,
        "beta": beta,
    },
    "a cluster": {"sample": 6 * P / 100e12, "alpha": 10e-6, "beta": 4 / 50e9},
}
faster = machines["this machine"]["sample"] / machines["a cluster"]["sample"]
print(f"a device of the cluster computes about {faster:,.0f} times as fast as this machine")
N = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096])


def step_time(n, b, sample, alpha, beta):
    return sample * b + 2 * (n - 1) * alpha + 2 * (n - 1) / n * P * beta


# %%
figure, plots = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
for (name, costs), style in zip(machines.items(), ("--", "-"), strict=True):
    strong = step_time(1, 4096, **costs) / step_time(N, 4096 / N, **costs)
    weak = step_time(1, 256, **costs) / step_time(N, 256, **costs)
    plots[0].plot(N, strong, style, label=name)
    plots[1].plot(N, weak, style, label=name)
plots[0].plot(N, N, ":", color="gray", label="ideal")
plots[0].set(
    title="Strong: 4096 samples a step",
    xscale="log",
    yscale="log",
    xlabel="ranks",
    ylabel="speedup",
)
plots[1].set(
    title="Weak: 256 samples a rank",
    xscale="log",
    xlabel="ranks",
    ylabel="efficiency",
    ylim=(0, 1.05),
)
plots[0].legend(fontsize=8)
plt.show()

# %%
best = int(N[np.argmax([-step_time(n, 4096 / n, **machines["a cluster"]) for n in N])])
efficiency = step_time(1, 256, **machines["a cluster"]) / step_time(
    1024, 256, **machines["a cluster"]
)
print(
    f"a cluster: 4096 samples a step are fastest on {best} ranks; "
    f"256 a rank keep {efficiency:.0%} of a rank's speed on 1024"
)
assert 1 < best < 4096, "Past some number, more ranks make a fixed batch slower."

# %% [markdown]
# ## 6. What the model leaves out
#
# - **Overlap**: gradients travel while backward goes on. At best $T = \max(\text{backward},
#   \text{ring})$ and not their sum. The curves above are pessimistic.
# - **Other algorithms**: on many ranks trees and hierarchies (a ring within a machine, another
#   between machines) replace $2(N-1)\alpha$ by $O(\log N)$. Pessimistic again.
# - **Stragglers**: a step waits for the slowest rank. The expected maximum of N random times
#   grows with N. Optimistic.
# - **Statistics**: weak scaling makes the batch larger, and past the [critical batch
#   size](06_lr_scaling.ipynb) a sample is worth less. Optimistic, and often the limit that
#   counts.
#
# A fitted model is a statement about what was left out. Extrapolate to decide what to measure
# next.

# %% [markdown]
# ## Exercises
#
# **1.** On the cluster, how many samples must a rank have for computing to take as long as the bytes
# of the ring? (Ignore the rounds, take $(N-1)/N$ as 1, and round to a whole number.)

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


cluster = machines["a cluster"]
bytes_only = step_time(1e9, 0, **cluster | {"alpha": 0.0})  # N so large that (N - 1) / N is 1
check(answer, round(bytes_only / cluster["sample"]))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
# 2 P numbers of 4 bytes at 50 GB/s take as long as 6 P operations a sample at 1e14 a second.
answer = round((2 * 4 / 50e9) / (6 / 100e12))
print(f"{answer} samples a rank, whatever P is")
computing, talking = step_time(1, answer, **cluster), bytes_only
assert abs(computing / talking - 1) < 1e-3, "Both take equally long."

# %% [markdown]
# **2.** Add overlap: `overlapped(n, b, ...)` where the ring hides behind backward (two thirds of
# computing). How much does weak-scaling efficiency at 1024 ranks improve? The check looks at short
# rings, which hide, and at long ones, which do not.


# %%
def overlapped(n, b, sample, alpha, beta):
    """The time of a step whose ring runs beside backward."""
    ...


# %%
def check_overlapped(function):
    """Compare it with step_time: overlap saves the shorter of the ring and backward."""
    for case in ((4, 1, 3.0, 0.0, 0.0), (4, 1, 3.0, 0.2, 0.0), (4, 1, 3.0, 1.0, 0.0)):
        found, whole, computing = function(*case), step_time(*case), step_time(1, *case[1:])
        if found is None:
            return "Not answered yet."
        truth = whole - min(whole - computing, computing * 2 / 3)
        if abs(found - truth) > 1e-9:
            return f"Not right: overlapped{case} gave {found:.2f} s in place of {truth:.2f} s."
    return "Yes: a ring costs only what backward cannot hide."


print(check_overlapped(overlapped))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def overlapped_solution(n, b, sample, alpha, beta):
    ring = 2 * (n - 1) * alpha + 2 * (n - 1) / n * P * beta
    return sample * b / 3 + max(sample * b * 2 / 3, ring)


better = step_time(1, 256, **cluster) / overlapped_solution(1024, 256, **cluster)
print(f"{efficiency:.1%} without, {better:.1%} with overlap")
assert check_overlapped(overlapped_solution).startswith("Yes")
assert better > efficiency, "What hides is saved, however little it is beside a long ring."

# %% [markdown]
# ## Remember
#
# - A step is computing plus talking; two numbers describe each.
# - A fixed batch stops getting faster; a growing one stops getting better.
# - Say what a model leaves out, and in which direction it errs.
#
# ## What next
#
# - You have reached the end of this series. [Models that do not
#   fit](../../docs/guides/strategies.md) and [A strategy of your
#   own](../../docs/custom-strategies.md) are where it is put to use.
