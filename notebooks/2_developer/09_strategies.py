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
# # Choose a strategy by memory
#
# **What you will see.** What a model of a given size would hold on your devices under each
# strategy, and one function trained under three of them: the same losses, other numbers of
# parameters on each rank.
#
# **You need** [the whole loop](01_one_loop.ipynb). About 12 minutes to read, about a minute to
# run.

# %% [markdown]
# ## 1. Ask before you train
#
# A **strategy** says how a model lies across ranks. Data parallelism (DDP) is the default: a
# whole copy on each. When a copy does not fit, parts of it must be divided. `advise` measures a
# model without running it (also one that is far too large for this machine) and tells what a
# rank would hold.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import DDP, FSDP, Accelerator, TensorParallel, advise, notebook_launcher


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self, width=32, num_blocks=4):
        super().__init__()
        self.tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


with torch.device("meta"):  # shapes without numbers: nothing is allocated
    large = Net(width=4096, num_blocks=24)
num = sum(p.numel() for p in large.parameters())
print(f"{num / 1e9:.1f} billion parameters")

# %% [markdown]
# **Predict before you run.** Adam in mixed precision keeps about 16 bytes for each parameter.
# Does this model fit on one device of 24 GB? And in halves, on two? a. both · b. only in halves
# · c. neither


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
advice = advise(large, torch.empty(8, 4096, device="meta"), ["24GB", "24GB"])
advice

# %% [markdown]
# Each line is one strategy. **ZeRO** ("Zero Redundancy Optimizer") is the idea of keeping the
# optimizer's states, the gradients and the parameters only once among all ranks, in stages 1 to
# 3; lines with that name are for DeepSpeed, the library it comes from
# (`pip install "notebook-accel[deepspeed]"`). FSDP is PyTorch's own form of stage 3.
# **Offloaded** parts lie in the CPU's memory.
#
# The arrow does not point to the smallest. Lines that fit are in the order of their *speed*, as
# far as it can be told without running them: memory that stays free trains nothing, and what
# saves most (offloading, computing twice) costs time. A line whose package is not installed may
# come later.

# %%
held = {one.label: one.memory for one in advice.estimates}  # bytes on a rank
whole, half = held["DDP"], held["FSDP"]
print(compare(guess, "a" if whole.total < 24e9 else "b" if half.total < 24e9 else "c"))
for label, memory in {"DDP": whole, "FSDP": half}.items():
    kept = memory.weights + memory.gradients + memory.optimizer
    print(f"{label}: {kept / 1e9:.1f} GB that stay, {memory.other / 1e9:.1f} GB on top")
    assert abs(kept / num - (16 if memory is whole else 8)) < 0.01, "Bytes for each parameter."
assert advice.best is not None, "Offloaded to the CPU's memory it fits."
print(advice.code)

# %% [markdown]
# The 16 bytes are what stays: 4 of weights, 4 of gradients, 8 of Adam's states. FSDP leaves half of
# them on each of two ranks. The column **other** is what a strategy needs on top. DDP has the
# gradients once more, in the buckets from which they are sent, and a copy of the weights in bf16:
# 6 bytes a parameter. FSDP has one block at a time whole, with its gradients, and the next one on
# its way.

# %% [markdown]
# ## 2. One function, three strategies
#
# The loop does not change. The strategy is a value given to the launch. A parameter that it divides
# is a **DTensor**: it has the shape of the whole, and `to_local()` gives the part on this rank.

# %%
from torch.distributed.tensor import DTensor

x = torch.randn(64, 32)
data = TensorDataset(x, x[:, :4].sum(1, keepdim=True).tanh())


def part_here(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def main(batch_size):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(5):
        for a, b in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(a), b))
            optimizer.step()
    return sum(part_here(parameter).numel() for parameter in model.parameters())


strategies = {
    "DDP": (DDP(), 8),
    "FSDP": (FSDP(), 8),
    "TensorParallel": (TensorParallel(size=2), 16),
}
done = {
    name: notebook_launcher(main, (size,), num_processes=2, device="cpu", strategy=strategy)
    for name, (strategy, size) in strategies.items()
}

# %% [markdown]
# Two ranks of `TensorParallel(size=2)` compute one batch together, so their batch is 16 where
# the others have 2 x 8.

# %%
losses = {name: run.history["loss"] for name, run in done.items()}
apart = max(
    abs(a - b) for other in ("FSDP", "TensorParallel")
    for a, b in zip(losses["DDP"], losses[other], strict=True)
)  # fmt: skip
print(f"the losses are at most {apart:.1e} apart")
assert apart < 1e-3, "A strategy changes where numbers lie, not what they are."

figure, plots = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for (name, curve), style in zip(losses.items(), ("-", "--", ":"), strict=True):
    plots[0].plot(curve, style, linewidth=2, label=name)
plots[0].set(title="The same losses", xlabel="step", ylabel="loss")
plots[0].legend(fontsize=8)
plots[1].bar(list(done), [run[0] for run in done.values()], color="#1763a6")
plots[1].set(title="Rank 0 holds half of them", ylabel="parameters")
plt.show()
assert done["FSDP"][0] < 0.6 * done["DDP"][0]

# %% [markdown]
# ## 3. Wrong degrees
#
# What cannot be is refused before anything is divided, on every rank alike.

# %%
from IPython import get_ipython

try:
    notebook_launcher(main, (8,), num_processes=2, device="cpu", strategy=TensorParallel(size=3))
except ValueError:
    get_ipython().showtraceback()

# %% [markdown]
# ## 4. Sixty-four ranks on this machine
#
# `device="fake"` plays a layout: no numbers of 64 ranks, but the shapes, the division of the
# batch and the memory of each rank. `FSDP(replicas=8)` makes 8 copies of the model, each divided
# over 64 / 8 = 8 ranks. The many small exchanges of parameters then stay among 8 ranks that lie
# close together (one machine, say), and between copies only gradients are averaged.

# %%
notebook_launcher(main, (8,), num_processes=64, device="fake", strategy=FSDP(replicas=8))

# %% [markdown]
# ## Exercises
#
# **1.** A model of 7 billion parameters, four devices of 80 GB. Work out first: does a whole copy fit
# on each? Then write the name of the strategy's class that you expect to be advised.

# %%
answer = None  # write "DDP", "FSDP", "TensorParallel", ...


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


seven = advise(7_000_000_000, devices=["80GB"] * 4)
check(answer, type(seven.best).__name__)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "FSDP"  # 112 GB do not fit on 80, a quarter of them does
fits = {one.label: one.fits for one in seven.estimates}
assert not fits["DDP"] and fits["FSDP"]
assert answer == type(seven.best).__name__
print(seven.code)

# %% [markdown]
# ## Remember
#
# - About 16 bytes a parameter with Adam, before activations.
# - `advise(model, batch, devices)` before you train; `device="fake"` for a layout you do not
#   have.
# - DDP while a copy fits, then FSDP (or ZeRO), and offloading when even a part does not fit, as
#   above. Tensor parallelism and pipelines for layers and links that ask for them.
#
# ## What next
#
# - [Kaggle and Colab](10_kaggle_colab.ipynb)
# - [Models that do not fit](../../docs/guides/strategies.md)
# - How it works: [sharding by hand](../3_researcher/07_sharding.ipynb)
