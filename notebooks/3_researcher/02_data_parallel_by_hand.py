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
# # Write data parallelism yourself, from autograd hooks
#
# **What you will see.** Ten lines that average gradients while backward is still going on, the
# reason why they work, and the mistake that makes ranks drift apart without a word.
#
# **You need** [one loop on any hardware](01_one_loop.ipynb) and `loss.backward()`. About 15
# minutes to read, half a minute to run. Everything here is gloo on the CPU: we look at
# collectives, not at speed.

# %% [markdown]
# ## 1. A rank and a collective
#
# A **rank** is one process of N. A **collective** is an operation that all ranks call together:
# each brings a tensor, each gets a result. `all_reduce` gives every rank the sum of what all
# brought.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import Accelerator, notebook_launcher


def sum_of_ranks():
    accelerator = Accelerator()  # joins the process group; torch.distributed is the ordinary one
    mine = torch.tensor([float(accelerator.process_index + 1)])
    dist.all_reduce(mine)
    return mine.item()


run = notebook_launcher(sum_of_ranks, num_processes=4, device="cpu")
print([run[rank] for rank in range(4)])
assert [run[rank] for rank in range(4)] == [10.0] * 4, "1 + 2 + 3 + 4, on every rank"

# %% [markdown]
# ## 2. The simplest wrapper: average after backward
#
# Three duties: begin with equal weights, give each rank its own samples, average the gradients
# before each step.


# %%
def make_net():
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def batches(rank, size, num=60, batch=32):
    """The same stream of batches on every rank; a rank takes its part of each."""
    numbers = torch.Generator().manual_seed(1)
    for _ in range(num):
        x = torch.randn(batch, 8, generator=numbers)
        yield x[rank::size], x[rank::size].prod(1, keepdim=True).tanh()


def average(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def by_hand(begin_equal=True):
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(rank)  # as if every rank had made its own weights
    net = make_net()
    if begin_equal:
        for p in net.parameters():
            dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        average(net.parameters())
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


# %% [markdown]
# **Predict before you run.** Without the broadcast at the beginning, the ranks' gradients are
# averaged all the same. After 60 steps, are the weights of the two ranks a. equal · b. closer
# than at the beginning · c. about as far apart as at the beginning?


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
right = notebook_launcher(by_hand, (True,), num_processes=2, device="cpu")
wrong = notebook_launcher(by_hand, (False,), num_processes=2, device="cpu")
torch.manual_seed(0)
first = torch.cat([p.detach().flatten() for p in make_net().parameters()])
torch.manual_seed(1)
second = torch.cat([p.detach().flatten() for p in make_net().parameters()])

before, after = (first - second).norm().item(), (wrong[0] - wrong[1]).norm().item()
print(compare(guess, "a" if after == 0 else "b" if after < before / 2 else "c"))
print(f"apart at the beginning {before:.3f}, at the end {after:.3f}")
assert torch.equal(right[0], right[1]), "Equal at the beginning and equal steps: equal for ever."
assert abs(after - before) < 1e-3, "Equal steps keep a distance."

# %% [markdown]
# The averaged gradient is the same vector on both ranks, so both take the same step, and a
# difference stays what it was. Nothing complains, and the loss even falls. This is why `prepare`
# starts every model from rank 0's weights, and says so when the ranks differed.

# %% [markdown]
# ## 3. Overlap: average while backward goes on
#
# Backward computes gradients from the last layer to the first. The last layer's gradient is
# ready long before the first one's, so it may travel in the meantime. A **hook** is a function
# that autograd calls when a parameter's gradient is complete.


# %%
class Averaged:
    """Averages each gradient of ``module`` as soon as it is there."""

    def __init__(self, module):
        self.order, self.works = [], []
        names = {p: name for name, p in module.named_parameters()}
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(lambda p: self.start(p, names[p]))

    def start(self, p, name):
        self.order.append(name)
        p.grad /= dist.get_world_size()
        self.works.append(dist.all_reduce(p.grad, async_op=True))  # returns at once

    def wait(self):
        for work in self.works:
            work.wait()
        self.works.clear()


# %%
def with_hooks():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(rank)
    net = make_net()
    averaged = Averaged(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        averaged.wait()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    return weights, averaged.order


hooked = notebook_launcher(with_hooks, num_processes=2, device="cpu")
weights, order = hooked[0]
print("gradients set out in this order:", order[:4])
torch.testing.assert_close(weights, right[0])
assert order[0].startswith("2.") and order[3].startswith("0."), "the last layer's come first"

# %% [markdown]
# `DistributedDataParallel`, which `prepare` uses, does this with one refinement: it fills
# **buckets** of about 25 MB and sends a bucket when all of its gradients are there, because a
# collective has a fixed cost however small its tensor is (Li et al. 2020, "PyTorch Distributed",
# section 3.2.3).

# %% [markdown]
# ## 4. The same by `prepare`


# %%
def prepared():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(rank)
    net = make_net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


ours = notebook_launcher(prepared, num_processes=2, device="cpu")
torch.testing.assert_close(ours[0], right[0])

figure, plot = plt.subplots(figsize=(7, 2.6))
ways = {"by hand": right[0], "by hooks": weights, "by prepare": ours[0], "unequal start": wrong[0]}
apart = [(w - right[0]).norm().item() for w in ways.values()]
plot.barh(list(ways), apart, color=["#1763a6", "#1763a6", "#1763a6", "#b04a00"])
plot.set(
    title="Three ways to the same weights, and one elsewhere", xlabel="distance of rank 0's weights"
)
plt.show()

# %% [markdown]
# ## Exercises
#
# **1.** How many calls of `all_reduce` does `Averaged` make in one step of this net? `order` has a
# name for each call that it made in 60 steps.

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


check(answer, len(order) // 60)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = len(list(make_net().parameters()))  # a weight and a bias of each of the two layers
print(answer)
assert answer == len(order) / 60, "One call for each parameter, however small."

# %% [markdown]
# **2.** One collective for all gradients: write `average_flat`, which copies all gradients into
# one vector, averages it, and copies it back.


# %%
def average_flat(parameters):
    """Average all gradients over ranks, with a single all_reduce."""
    ...


# %%
def check_average(function):
    """Compare it on two ranks with ``average``, which sends them one by one."""

    def on_a_rank():
        rank = Accelerator().process_index
        gradients = []
        for way in (list, average, function):  # list does nothing to them
            torch.manual_seed(0)
            net = make_net()
            net(torch.full((4, 8), float(rank))).sum().backward()
            way(net.parameters())
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        return gradients

    own, truth, found = notebook_launcher(on_a_rank, num_processes=2, device="cpu")[0]
    if torch.equal(found, own):
        return "Not answered yet."
    if torch.allclose(found, truth):
        return f"Yes: all {len(found)} gradients are averages."
    first = int((found - truth).abs().argmax())
    return f"Not right: gradient {first} became {found[first]:.3f} in place of {truth[first]:.3f}."


print(check_average(average_flat))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def average_flat_solution(parameters):
    parameters = list(parameters)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))


assert check_average(average_flat_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - Equal start, own samples, averaged gradients: each of the three is needed.
# - Averaging alone does not bring ranks together. Without an equal start they stay apart,
#   silently.
# - Gradients can travel while earlier layers still compute; buckets make few collectives of
#   many.
#
# ## What next
#
# - [All-reduce as a ring](03_ring.ipynb): what happens inside the collective
# - [One loop on any hardware](01_one_loop.ipynb): the identity behind it
