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
# # Average once a window: no_sync, and what it costs to forget it
#
# **What you will see.** How many times ranks talk while they accumulate gradients, the memory
# that a window costs, and the two wrong divisions that nobody notices.
#
# **You need** [data parallelism by hand](02_data_parallel_by_hand.ipynb). About 12 minutes to
# read, half a minute to run.

# %% [markdown]
# ## 1. A window
#
# **Gradient accumulation** adds the gradients of $k$ micro-batches before one optimizer step: a
# **window**. Sums may be exchanged,
#
# $$\sum_{m=1}^{k} \frac{1}{N}\sum_{r=1}^{N} g_{r,m} \;=\; \frac{1}{N}\sum_{r=1}^{N}\Big(\sum_{m=1}^{k} g_{r,m}\Big),$$
#
# so it is enough to average once, after the last micro-batch. `no_sync` keeps the wrapper's
# hooks quiet until then. We count what the ranks say to each other by a **communication hook**,
# which DDP calls for every bucket.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

torch.manual_seed(0)
X = torch.randn(960, 16)
Y = X.prod(1, keepdim=True).sign()


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))


def counting(model):
    """Count the buckets that a DDP model averages."""
    buckets = []

    def hook(state, bucket):
        buckets.append(bucket.buffer().numel())
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, hook)
    return buckets


# %%
def window_of(k, use_no_sync):
    """Take one optimizer step of ``k`` micro-batches; give the weights and the buckets sent."""
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    model = DistributedDataParallel(make_net())
    buckets = counting(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for m, (x, y) in enumerate(zip(X.chunk(k * size), Y.chunk(k * size), strict=True)):
        if m % size != rank:
            continue
        last = m // size == k - 1
        model.require_backward_grad_sync = last or not use_no_sync  # what no_sync() sets
        (nn.functional.mse_loss(model(x), y) / k).backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), len(buckets)


# %% [markdown]
# **Predict before you run.** A window of 4 micro-batches, averaged after *every* micro-batch.
# Compared with averaging once: are the weights afterwards a. the same · b. different, because
# averaging averages is wrong?


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a" or "b"

# %%
once, num_once = notebook_launcher(window_of, (4, True), num_processes=2, device="cpu")[0]
every, num_every = notebook_launcher(window_of, (4, False), num_processes=2, device="cpu")[0]
print(compare(guess, "a" if torch.allclose(once, every, atol=1e-6) else "b"))
print(f"buckets sent in a window of 4: {num_once} with no_sync, {num_every} without")
torch.testing.assert_close(once, every, atol=1e-5, rtol=1e-4)
assert num_every == 4 * num_once, "The result is the same, the talking is not."

# %% [markdown]
# What has been averaged is equal on all ranks, and an average of equals changes nothing. So
# forgetting `no_sync` is not wrong, it is slow.

# %% [markdown]
# ## 2. The same through `accumulate`
#
# `accelerator.accumulate` decides which micro-batch is the last of its window, also at the end
# of the loader, and divides the loss.


# %%
def accumulated(k, num=960):
    """Train a pass over ``num`` samples in windows of ``k``; give how many buckets were sent."""
    accelerator = Accelerator(gradient_accumulation_steps=k)
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X[:num], Y[:num]), batch_size=20)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    sent = counting(model)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    return len(sent)


counts = {}
for k in (1, 2, 4, 8):
    counts[k] = notebook_launcher(accumulated, (k,), num_processes=2, device="cpu")[0]
print("collectives in a pass of 24 batches a rank:", counts)
assert counts == {1: 24, 2: 12, 4: 6, 8: 3}

# %%
figure, plot = plt.subplots(figsize=(7, 2.5))
plot.bar([str(k) for k in counts], counts.values(), color="#1763a6")
plot.set(
    title="A window talks once", xlabel="micro-batches in a window", ylabel="collectives in a pass"
)
plt.show()

# %% [markdown]
# ## 3. What it costs
#
# - **Memory.** A gradient of every parameter lives through the window: $P$ numbers. Where
#   gradients are sharded (ZeRO-2, FSDP), they would be whole until the window ends, $P$ instead
#   of $P/N$. There a reduce-scatter after each micro-batch may be the better bargain.
# - **Freshness.** $k$ times fewer updates see the same data. That is not the same training with
#   a different clock: see [scaling the learning rate](06_lr_scaling.ipynb).
# - **The division.** $k$ losses that are means must be divided by $k$. Two wrong ways are
#   common.

# %%
x, y = X[:70], Y[:70]


def gradient(parts, divisor):
    net = make_net()
    for a, b in parts:
        (nn.functional.mse_loss(net(a), b) / divisor).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


whole = gradient([(x, y)], 1)
equal = list(zip(x.split(35), y.split(35), strict=True))
print(f"two halves, divided by 2: {torch.dist(gradient(equal, 2), whole):.1e} from the whole")
print(f"not divided at all:       {torch.dist(gradient(equal, 1), whole):.1e}")
short = list(zip(x.split(35)[:1], y.split(35)[:1], strict=True))  # the last window has one batch
print(f"one batch, divided by 2:  {torch.dist(gradient(short, 2), gradient(short, 1)):.1e}")
assert torch.dist(gradient(equal, 2), whole) < 1e-5

# %% [markdown]
# The last line is the short window at the end of a pass: divided by the full $k$, its step comes
# out too small. Here it is divided by what it really has.

# %% [markdown]
# ## Exercises
#
# **1.** A pass has 22 batches a rank and windows of 4. How many optimizer steps does it take,
# and how many micro-batches are in the last window?

# %%
steps = None  # write the number of optimizer steps
in_the_last = None  # write the number of micro-batches in the last window


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


windows = [range(22)[start : start + 4] for start in range(0, 22, 4)]
check(steps, len(windows))
check(in_the_last, len(windows[-1]))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
steps = 22 // 4 + 1  # five whole windows, and one for the rest
in_the_last = 22 % 4
print(steps, in_the_last)
counted = notebook_launcher(accumulated, (4, 22 * 20 * 2), num_processes=2, device="cpu")[0]
assert steps == counted, "One collective for each step: a launch that counts them agrees."
assert 4 * (steps - 1) + in_the_last == 22, "No micro-batch is left over."

# %% [markdown]
# **2.** 5 does not divide 24. How many times does `accumulated` talk in a pass of 24 batches a
# rank, in windows of 5? Write a launch that finds out.

# %%
answer = None  # write a launch that gives the number

# %%
check(answer, len(range(0, 24, 5)))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = notebook_launcher(accumulated, (5,), num_processes=2, device="cpu")[0]
print(answer)
assert answer == 24 // 5 + 1, "The four batches at the end are a window too."

# %% [markdown]
# ## Remember
#
# - Averaging is linear: once a window is enough.
# - Without `no_sync` the numbers are right and the traffic is $k$ times as large.
# - Divide by the number of micro-batches that the window has.
#
# ## What next
#
# - [Batch norm sees one replica](05_batchnorm.ipynb): where the identity breaks
# - [Counting right](../../docs/guides/counting.md)
