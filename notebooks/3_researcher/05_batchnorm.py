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
# # Batch norm sees one replica: where N ranks are not one
#
# **What you will see.** A layer that breaks the identity of data parallelism, by how much, and
# the synchronized layer that mends it.
#
# **You need** [one loop on any hardware](01_one_loop.ipynb) and what batch norm computes. About
# 10 minutes to read, half a minute to run.

# %% [markdown]
# ## 1. Why it breaks
#
# The identity of data parallelism needs the loss of a sample to depend on this sample only.
# Batch norm makes it depend on the whole batch:
#
# $$\hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad \mu = \frac1b\sum_i x_i, \quad \sigma^2 = \frac1b\sum_i (x_i - \mu)^2 .$$
#
# On N ranks each replica has its own $\mu$ and $\sigma^2$, of $b = B/N$ samples. The noise of an
# estimated mean has variance $\sigma^2/b$: halving $b$ doubles it.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher

torch.manual_seed(0)
X = torch.randn(512, 8) * 3 + 2
Y = (X[:, :1] > 2).float()


def make_net(sync=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    return nn.SyncBatchNorm.convert_sync_batchnorm(net) if sync else net


def train(batch, sync=False, num_steps=40):
    """Train on batches of ``batch`` samples, over all ranks together; give losses and the net."""
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net(sync)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    losses = []
    for step in range(num_steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(X)
        x, y = X[rows][rank::size], Y[rows][rank::size]
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses, net


# %% [markdown]
# **Predict before you run.** One rank with 16 samples a step, two ranks with 8 each. Which of
# the two nets will have the *other* losses: a. the one with batch norm as it is · b. the one
# with synchronized batch norm · c. both


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
one, net_one = notebook_launcher(train, (16,), num_processes=1, device="cpu")[0]
plain, net_plain = notebook_launcher(train, (16,), num_processes=2, device="cpu")[0]
synced, net_synced = notebook_launcher(train, (16, True), num_processes=2, device="cpu")[0]


def apart(losses):
    return max(abs(p - q) for p, q in zip(losses, one, strict=True))


print(
    compare(
        guess,
        {(True, False): "a", (False, True): "b", (True, True): "c"}[
            (apart(plain) > 1e-3, apart(synced) > 1e-3)
        ],
    )
)
print(f"plain: {apart(plain):.4f} apart, synchronized: {apart(synced):.1e} apart")
assert apart(synced) < 1e-4, "With statistics over all ranks, two ranks are one again."
assert apart(plain) > 1e-3, "With statistics of its own, each replica is another net."

# %%
figure, plot = plt.subplots(figsize=(7, 2.8))
plot.plot(one, color="#1763a6", linewidth=4, alpha=0.4, label="1 rank")
plot.plot(plain, ":", color="#b04a00", label="2 ranks, batch norm")
plot.plot(synced, "--", color="#2f7031", label="2 ranks, synchronized")
plot.set(title="Each replica normalizes by its own batch", xlabel="optimizer step", ylabel="loss")
plot.legend()
plt.show()

# %% [markdown]
# ## 2. Which is better?
#
# Not a question of right and wrong. Goyal et al. 2017 (section 2.3) keep the statistics per
# replica on purpose: the batch of a replica is then a constant of the method, and its noise
# regularizes. Synchronize when a replica has few samples, as in detection and segmentation (Peng
# et al. 2018), or when a result should not depend on the number of ranks.
#
# `convert_sync_batchnorm` costs two small collectives a layer and step, in forward and in
# backward.
#
# Evaluation uses **running** statistics, which are buffers and no parameters. Gradients are
# averaged, buffers are not: rank 0's are broadcast, so the running mean has only seen rank 0's
# samples.

# %%
print("running means, 1 rank and 2 plain ranks:")
print(net_one[1].running_mean[:4].numpy().round(3), net_plain[1].running_mean[:4].numpy().round(3))
torch.testing.assert_close(
    net_synced[1].running_mean, net_one[1].running_mean, atol=1e-4, rtol=1e-3
)

# %% [markdown]
# ## 3. Layers that keep the identity
#
# Layer norm and group norm compute statistics within a sample. Nothing breaks.


# %%
def train_with_layer_norm():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net()
    net[1] = nn.LayerNorm(16)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for start in range(0, 512, 16):
        x, y = X[start : start + 16][rank::size], Y[start : start + 16][rank::size]
        optimizer.zero_grad()
        accelerator.backward(nn.functional.binary_cross_entropy_with_logits(model(x), y))
        optimizer.step()
    return net


a, b = (notebook_launcher(train_with_layer_norm, num_processes=n, device="cpu")[0] for n in (1, 2))
torch.testing.assert_close(a[0].weight, b[0].weight, atol=1e-5, rtol=1e-4)

# %% [markdown]
# ## Exercises
#
# **1.** Gradient accumulation has the same flaw. With windows of 4 micro-batches of 8 samples,
# over how many samples does a batch norm compute its mean?

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


seen = []
norm = nn.BatchNorm1d(8, momentum=1.0)  # its running mean is the mean that it took last
norm.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
for micro_batch in X[:32].split(8):
    norm(micro_batch)
check(answer, max(seen))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 8  # a forward sees one micro-batch, whatever the window is
torch.testing.assert_close(norm.running_mean, X[:32][-answer:].mean(0))
assert answer == max(seen), "Only gradients wait for the window to end."
assert not torch.allclose(norm.running_mean, X[:32].mean(0), atol=0.01), "Not over all 32."

# %% [markdown]
# **2.** Measure the noise: how does the standard deviation of a batch's mean depend on the
# batch's size?


# %%
def spread(batch):
    """The standard deviation, over many batches, of the mean of ``batch`` normal numbers."""
    ...


# %%
def check_spread(function):
    """Compare it with 1 / sqrt(batch), to a tenth of it."""
    for batch in (25, 100, 400):
        found, truth = function(batch), batch**-0.5
        if found is None:
            return "Not answered yet."
        if abs(found - truth) > truth / 10:
            return f"Not right: spread({batch}) gave {found:.3f} in place of about {truth:.3f}."
    return "Yes: four times the samples, half the noise."


print(check_spread(spread))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def spread_solution(batch):
    numbers = torch.Generator().manual_seed(0)
    return torch.randn(4000, batch, generator=numbers).mean(1).std().item()


for batch in (8, 32, 128):
    print(f"{batch:4} samples: {spread_solution(batch):.3f}, 1 / sqrt(b) = {batch**-0.5:.3f}")
assert check_spread(spread_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - N ranks equal one as long as a sample's loss depends on this sample only.
# - Batch norm does not: its statistics are those of a replica's batch.
# - Synchronize for small replicas and for results that must not depend on N.
#
# ## What next
#
# - [Scaling the learning rate](06_lr_scaling.ipynb): what else changes with the batch
