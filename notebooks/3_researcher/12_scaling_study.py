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
# **What you will see.** A step taken apart into computing and talking, a model of three numbers
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
    accelerator = Accelerator()
    net = make_net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))

    def step(batch):
        x, y = torch.randn(batch, 64), torch.randint(0, 10, (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return timed([partial(step, batch) for batch in batches])


batches = [8, 32, 128, 512, 2048]
seconds = np.array(notebook_launcher(compute, (batches,), num_processes=1, device="cpu")[0])
c1, c0 = np.polyfit(batches, seconds, 1, w=1 / seconds)
c1 = max(c1, 1e-12)  # on a very busy machine noise may win; then measure again
print(f"a step takes {c0 * 1e3:.2f} ms and {c1 * 1e6:.1f} microseconds a sample")

# %% [markdown]
# The launch prints a note here, that a loop went past `accelerator.backward`: right, on purpose,
# for we want the bare time.
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
# Now the same model with numbers of a cluster, beside those of this machine: a device that
# computes 200 times faster, links of 50 GB/s with 10 microseconds a round, and a model of 100
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
# **1.** Strong scaling: at which N do computing and the bytes of the ring take equally long, for
# the cluster and 4096 samples? (Ignore the rounds, and take $(N-1)/N$ as 1.)

# %%
answer = None  # write a number
cluster = machines["a cluster"]
print(compare(answer, round(cluster["sample"] * 4096 / (2 * P * cluster["beta"]), 2)))

# %% [markdown]
# **2.** Add overlap: `overlapped(n, b, ...)` where the ring hides behind backward (two thirds of
# computing). How much does weak-scaling efficiency at 1024 ranks improve?


# %%
def overlapped(n, b, sample, alpha, beta):
    """The time of a step whose ring runs beside backward."""
    ...


# %%
if overlapped(4, 1, 3.0, 1.0, 0.0) is not None:
    assert overlapped(4, 1, 3.0, 0.0, 0.0) == 3, "A ring that costs nothing leaves computing."
    seven = overlapped(4, 1, 3.0, 1.0, 0.0)
    assert seven == 7, "One second of forward; then six rounds hide two seconds of backward."


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def overlapped_solution(n, b, sample, alpha, beta):
    ring = 2 * (n - 1) * alpha + 2 * (n - 1) / n * P * beta
    return sample * b / 3 + max(sample * b * 2 / 3, ring)


better = step_time(1, 256, **cluster) / overlapped_solution(1024, 256, **cluster)
print(f"{efficiency:.0%} without, {better:.0%} with overlap")
assert better >= efficiency

# %% [markdown]
# ## Remember
#
# - A step is computing plus talking; three or four numbers describe both.
# - A fixed batch stops getting faster; a growing one stops getting better.
# - Say what a model leaves out, and in which direction it errs.
#
# ## What next
#
# - You have reached the end of this series. [Models that do not
#   fit](../../docs/guides/strategies.md) and [A strategy of your
#   own](../../docs/custom-strategies.md) are where it is put to use.
