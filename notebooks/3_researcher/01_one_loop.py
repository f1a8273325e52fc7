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
# # One loop on any hardware: what `prepare` returns, and where it stops being enough
#
# **What you will see.** What each prepared object is made of, which identity makes N ranks equal
# one, how many bytes travel per step, and at which model size this way of training ends.
#
# **You need** the training loop of PyTorch and the mean of a mean. About 15 minutes to read,
# half a minute to run. The launches use the CPU, because the numbers below are compared to the
# last bits.
#
# The same subject at other depths: [for beginners](../1_beginner/03_one_loop.ipynb) · [for
# developers](../2_developer/01_one_loop.ipynb).

# %% [markdown]
# ## 1. The identity
#
# Let $\ell_i(\theta)$ be the loss of sample $i$, and let a step use $B$ samples, cut into $N$
# parts of $b = B/N$. Then
#
# $$\nabla \frac{1}{B}\sum_{i=1}^{B} \ell_i
#   \;=\; \frac{1}{N}\sum_{r=1}^{N}\Big(\nabla \frac{1}{b}\sum_{i \in \text{part } r} \ell_i\Big).$$
#
# A mean of means over *equal* parts is the mean. So N ranks that each compute the gradient of
# their own part and average these N gradients take the step that one device would take on all
# $B$ samples. This is **data parallelism**; everything else in this lesson is bookkeeping for
# this line.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
data = TensorDataset(x[:1536], y[:1536])


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


# %% [markdown]
# ## 2. What `prepare` returns
#
# `prepare` gives back objects that look like yours. Here is what stands behind each of them.


# %%
def look():
    accelerator = Accelerator()
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    return {
        "model": type(model).__name__,
        "the module inside is yours": accelerator.unwrap_model(model) is net,
        "optimizer": [type(optimizer).__name__, type(optimizer.optimizer).__name__],
        "batches of a pass, before and after": [len(data) // 32, len(loader)],
        "device": str(accelerator.device),
    }


for name, what in notebook_launcher(look, num_processes=2, device="cpu")[0].items():
    print(f"{name}: {what}")

# %% [markdown]
# - **The model** is wrapped in `DistributedDataParallel`. Its hooks start averaging a gradient
#   as soon as backward has produced it, while earlier layers are still computing (Li et al.
#   2020, section 3.2).
# - **The optimizer** is yours behind a thin face, which knows whether an accumulation window is
#   complete.
# - **The loader** deals batches round: rank $r$ gets batches $r, r+N, r+2N, \ldots$ of the
#   *same* shuffled order. Every rank therefore sees half of the batches, and together they see
#   each sample once.

# %% [markdown]
# ## 3. Does the identity hold in floating point?
#
# Sums of floats depend on their order, so "equal" means: to rounding. Train with 1 rank and
# batches of 64, and with 2 ranks and batches of 32 each.


# %%
def train(batch_size):
    accelerator = Accelerator()
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(4):
        for a, b in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(a), b))
            optimizer.step()
    return model


# %% [markdown]
# **Predict before you run.** By how much will the largest weight differ after 96 steps? a. not
# at all · b. by less than 0.001 · c. by more


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
state = torch.random.get_rng_state()  # the shuffle is drawn from it: the same for both launches
one = notebook_launcher(train, (64,), num_processes=1, device="cpu")
torch.random.set_rng_state(state)
two = notebook_launcher(train, (32,), num_processes=2, device="cpu")

largest = max(
    (p - q).abs().max().item()
    for p, q in zip(one[0].parameters(), two[0].parameters(), strict=True)
)
print(compare(guess, "a" if largest == 0 else "b" if largest < 1e-3 else "c"))
print(f"largest difference of a weight: {largest:.1e}")
assert largest < 1e-3, "Two ranks take the steps of one."

# %% [markdown]
# The two curves lie on each other. What is drawn is the mean over ranks of each rank's own loss,
# which by the same identity is the loss of the whole batch.

# %%
figure, plot = plt.subplots(figsize=(7, 2.8))
plot.plot(
    one.history["loss"], color="#1763a6", linewidth=4, alpha=0.4, label="1 rank, batches of 64"
)
plot.plot(two.history["loss"], "--", color="#b04a00", label="2 ranks, batches of 32 each")
plot.set(title="Two ranks take the steps of one", xlabel="optimizer step", ylabel="loss")
plot.legend()
plt.show()
pairs = zip(one.history["loss"], two.history["loss"], strict=True)
assert max(abs(p - q) for p, q in pairs) < 1e-3

# %% [markdown]
# ## 4. The accounting of a step
#
# Let $P$ be the number of parameters. In one step a rank
#
# | | amount |
# | --- | --- |
# | computes | about $6Pb$ floating-point operations: $2Pb$ forward, $4Pb$ backward (each weight, each sample: a multiply and an add) |
# | sends and receives | $2P\frac{N-1}{N}$ numbers in a ring all-reduce, for any $N$ nearly $2P$ |
# | keeps | $P$ weights, $P$ gradients, $2P$ moments of Adam: 16 bytes a parameter in float32 |
#
# The communication does not shrink with $N$, the computation does when $B$ is fixed. So
# efficiency falls when $b = B/N$ becomes small. The last lesson of this series measures this and
# extrapolates.

# %%
P = sum(p.numel() for p in make_net().parameters())
print(f"P = {P:,} parameters")
for N in (2, 8, 64):
    print(f"N = {N:2}: a rank sends {2 * P * (N - 1) / N * 4 / 1e3:.1f} kB a step")

# %% [markdown]
# ## 5. Where it stops being enough
#
# Every rank keeps a whole copy of everything. With Adam in float32 that is 16 bytes a parameter
# *before any activation*.
#
# | | parameters | 16 bytes each |
# | --- | --- | --- |
# | this net | 5 thousand | 80 kB |
# | GPT-2 | 124 million | 2 GB |
# | a small language model | 7 billion | 112 GB: more than one device has |
#
# More ranks do not help: each has the same 112 GB. What helps is to *divide* what is kept:
# states and parameters ([sharding](07_sharding.ipynb)), layers by their columns ([tensor
# parallelism](08_tensor_parallel.ipynb)), or the model by its depth
# ([pipelines](09_pipeline.ipynb)). The loop stays the same.

# %% [markdown]
# ## Exercises
#
# **1.** The identity needs equal parts. Let rank 0 have 3 samples with losses 1, 2, 3 and rank 1
# one sample with loss 8. What is the mean over all four samples, and what is the mean of the two
# ranks' means?

# %%
over_samples = None  # write the mean over all four samples
of_means = None  # write the mean of the two ranks' means


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


def means():
    accelerator = Accelerator()
    losses = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([8.0])][accelerator.process_index]
    count = accelerator.reduce(torch.tensor(float(len(losses))), "sum")
    return (
        (accelerator.reduce(losses.sum(), "sum") / count).item(),
        accelerator.reduce(losses.mean(), "mean").item(),
    )


truths = notebook_launcher(means, num_processes=2, device="cpu")[0]
check(over_samples, truths[0])
check(of_means, truths[1])

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
over_samples = (1 + 2 + 3 + 8) / 4
of_means = ((1 + 2 + 3) / 3 + 8 / 1) / 2
print(over_samples, of_means)
assert (over_samples, of_means) == truths, "Unequal parts must be weighted by their sizes."

# %% [markdown]
# That is why the last, short batch of a loader is filled up by default, and why
# `accelerator.normalize(loss_sum, num_items)` exists for losses that are means over tokens.
#
# **2.** Show that accumulation is the same identity in time: one rank with batches of 16 and
# `gradient_accumulation_steps=4` takes the steps of one rank with batches of 64. Write
# `train_accumulated`, then compare its model with `one[0]`.


# %%
def train_accumulated():
    """Train one rank in windows of four batches of 16; give the model."""
    ...


# %%
def check_accumulated(function):
    """Compare its model with that of one rank and batches of 64."""
    torch.random.set_rng_state(state)
    model = notebook_launcher(function, num_processes=1, device="cpu")[0]
    if model is None:
        return "Not answered yet."
    pairs = zip(one[0].parameters(), model.parameters(), strict=True)
    apart = max((p - q).abs().max().item() for p, q in pairs)
    if apart < 1e-3:
        return "Yes: windows of 4 x 16 take the steps of batches of 64."
    return f"Not right: a weight is {apart:.1e} from that of batches of 64, in place of under 1e-3."


print(check_accumulated(train_accumulated))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def solution():
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(4):
        for a, b in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(a), b))
                optimizer.step()
                optimizer.zero_grad()
    return model


assert check_accumulated(solution).startswith("Yes"), "Accumulation is the same identity, in time."

# %% [markdown]
# ## Remember
#
# - Data parallelism is one identity: the mean of equal parts' means is the mean.
# - `prepare` wraps, it does not replace: your module is inside, under `unwrap_model`.
# - A step sends nearly $2P$ numbers a rank, whatever $N$ is.
# - It ends where 16 bytes a parameter do not fit on one device.
#
# ## What next
#
# - [Data parallelism from autograd hooks](02_data_parallel_by_hand.ipynb): write the wrapper
#   yourself
# - [How it works](../../docs/architecture.md): the processes behind a launch
