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
# # Sharding by hand: ZeRO and FSDP from reduce-scatter and all-gather
#
# **What you will see.** How each of four ranks keeps a quarter of the optimizer and of the
# gradients (stages 1 and 2), then of the parameters as well (stage 3), with the weights of plain
# training both times. Forty lines, two collectives.
#
# **You need** [the ring](03_ring.ipynb). About 20 minutes to read, half a minute to run. Four
# ranks on the CPU.

# %% [markdown]
# ## 1. What is kept, and by whom
#
# Mixed-precision training with Adam keeps 16 bytes a parameter (Rajbhandari et al. 2020, "ZeRO",
# section 3.1): 2 + 2 for weights and gradients in 16 bits, 12 for the float32 copy and two
# moments. Data parallelism keeps all of it N times. **Sharding** keeps it once, a part ("shard")
# on each rank:
#
# | | optimizer states | gradients | parameters | bytes a parameter and rank |
# | --- | --- | --- | --- | --- |
# | plain | all | all | all | 16 |
# | stage 1 | 1/N | all | all | 4 + 12/N |
# | stage 2 | 1/N | 1/N | all | 2 + 14/N |
# | stage 3, FSDP | 1/N | 1/N | 1/N | 16/N |

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import FSDP, Accelerator, notebook_launcher

N = torch.arange(1, 65)
figure, plot = plt.subplots(figsize=(7, 2.8))
curves = {"plain": 16 + 0 * N, "stage 1": 4 + 12 / N, "stage 2": 2 + 14 / N, "stage 3": 16 / N}
for (name, curve), style in zip(curves.items(), ["-", "--", "-.", ":"], strict=True):
    plot.plot(N, curve, style, label=name)
plot.set(
    title="Sharding divides what each rank keeps",
    xlabel="ranks N",
    ylabel="bytes a parameter",
    yscale="log",
)
plot.legend()
plt.show()

# %% [markdown]
# ## 2. One flat vector, cut into N shards
#
# `reduce_scatter` gives each rank the sum of *its shard* of what all brought; `all_gather` gives
# all ranks all shards. One after the other they are an all-reduce. Torch has both for whole
# vectors; 2.13 gave them the names below. On the CPU older releases add but do not average, so
# the cells divide the sum by N themselves.


# %%
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))


def batches(rank, size, num=30):
    numbers = torch.Generator().manual_seed(1)
    for _ in range(num):
        x = torch.randn(32, 8, generator=numbers)
        yield x[rank::size], x[rank::size, :3].argmax(1)  # the largest of the first three


def flat(tensors, size):
    """One vector, padded so that N equal shards fill it."""
    vector = torch.cat([t.detach().flatten() for t in tensors])
    return nn.functional.pad(vector, (0, -len(vector) % size))


def put_back(vector, parameters):
    for p in parameters:
        p.data.copy_(vector[: p.numel()].view_as(p))
        vector = vector[p.numel() :]


# %%
def plain():
    """Ordinary data parallelism, the truth to compare with."""
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizer.step()
    return flat(net.parameters(), size), num_states(optimizer)


def num_states(optimizer):
    """How many numbers the optimizer keeps."""
    return sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.numel() > 1)


# %% [markdown]
# ## 3. Stages 1 and 2
#
# Each rank owns one shard of the vector, and only *it* has Adam's moments for it. A step:
# reduce-scatter the gradients, update the own shard, all-gather the weights. That is stage 1.
# After the reduce-scatter a rank may forget the gradients of other shards, as the cell does with
# `p.grad = None`: that is stage 2. The bytes sent are those of an all-reduce.


# %%
def stage_2():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net()
    shard = flat(net.parameters(), size).chunk(size)[rank].clone().requires_grad_()
    optimizer = torch.optim.Adam([shard], lr=0.01)
    for x, y in batches(rank, size):
        nn.functional.cross_entropy(net(x), y).backward()
        gradient = flat([p.grad for p in net.parameters()], size)
        shard.grad = torch.empty_like(shard)
        reduce_scatter(shard.grad, gradient / size)
        for p in net.parameters():
            p.grad = None
        optimizer.step()
        whole = torch.empty(len(shard) * size)
        all_gather(whole, shard.detach())
        put_back(whole, net.parameters())
    return whole, num_states(optimizer)


# %% [markdown]
# **Predict before you run.** Adam is not linear in the gradient: it divides by a root. Each rank
# applies it to its shard alone. Are the weights after 30 steps a. the same as plain training's,
# to rounding · b. different, because each rank sees only a part of the gradient?


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a" or "b"

# %%
truth, all_states = notebook_launcher(plain, num_processes=4, device="cpu")[0]
sharded, own_states = notebook_launcher(stage_2, num_processes=4, device="cpu")[0]
print(compare(guess, "a" if torch.allclose(truth, sharded, atol=1e-5) else "b"))
print(f"Adam keeps {all_states} numbers, of a shard {own_states}")
torch.testing.assert_close(sharded, truth, atol=1e-5, rtol=1e-4)
assert own_states * 4 - all_states in range(8), "a quarter, up to padding"

# %% [markdown]
# Adam works element by element: what it does to a number depends on this number's gradients
# alone. So it can be cut anywhere. An optimizer that looks at whole matrices (Shampoo, Muon) or
# at norms of layers (LAMB) can not, and gradient *clipping* needs the norm of the whole vector:
# one small all-reduce of the shards' squared norms.

# %% [markdown]
# ## 4. Stage 3: parameters too
#
# Now a rank keeps only its shard of the weights. A layer is gathered just before it computes,
# and freed afterwards; in backward it is gathered once more. Here is one layer, with autograd
# doing the backward half: **the backward of an all-gather is a reduce-scatter.**


# %%
class Gather(torch.autograd.Function):
    """All shards from all ranks; backward averages gradients and gives each rank its shard."""

    @staticmethod
    def forward(ctx, shard):
        whole = torch.empty(len(shard) * dist.get_world_size())
        all_gather(whole, shard)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        size = dist.get_world_size()
        mine = torch.empty(len(gradient) // size)
        reduce_scatter(mine, gradient / size)
        return mine


# %%
def stage_3():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net()
    shapes = {name: p.shape for name, p in net.named_parameters()}
    shards = [nn.Parameter(flat([p], size).chunk(size)[rank].clone()) for p in net.parameters()]
    optimizer = torch.optim.Adam(shards, lr=0.01)
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        gathered = (Gather.apply(shard) for shard in shards)
        weights = {
            name: whole[: shape.numel()].view(shape)
            for (name, shape), whole in zip(shapes.items(), gathered, strict=True)
        }
        out = torch.func.functional_call(net, weights, (x,))
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
    whole = [
        Gather.apply(shard)[: shape.numel()]
        for shard, shape in zip(shards, shapes.values(), strict=True)
    ]
    return flat(whole, size), sum(shard.numel() for shard in shards)


again, num_kept = notebook_launcher(stage_3, num_processes=4, device="cpu")[0]
torch.testing.assert_close(again, truth, atol=1e-5, rtol=1e-4)
print(f"a rank keeps {num_kept} of {len(truth)} parameters between steps")
assert num_kept < len(truth) / 3

# %% [markdown]
# This gathers all layers at once; FSDP gathers one *block* at a time, and the next one while
# this one computes, so that at most two blocks are whole at any moment (Zhao et al. 2023,
# section 3). A step sends three times $P\frac{N-1}{N}$ instead of twice: gather, gather again,
# reduce-scatter.

# %% [markdown]
# ## 5. The same by a wish


# %%
def ours():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(net, optimizer)
    for x, y in batches(rank, size):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    # A sharded parameter is a DTensor of torch: to_local() is the part that this rank keeps.
    local = sum(p.to_local().numel() for p in model.parameters())
    state = accelerator.get_state_dict(model)
    return flat(state.values(), size) if state else None, local  # whole on rank 0 alone


wished, local = notebook_launcher(ours, num_processes=4, device="cpu", strategy=FSDP())[0]
torch.testing.assert_close(wished, truth, atol=1e-5, rtol=1e-4)
print(f"FSDP() keeps {local} parameters on rank 0, where ours kept {num_kept}")

# %% [markdown]
# Why more? Ours cuts each tensor as a vector, with a zero at the end where it needs one.
# `FSDP()` cuts it by *rows*, so that a shard is still a matrix: the last layer's 3 rows over 4
# ranks are one each for ranks 0 to 2, and none for rank 3. With rows in the thousands it does
# not matter.

# %% [markdown]
# ## Exercises
#
# **1.** A model of 7 billion parameters, 8 ranks: how many GB does a rank keep in stage 3, to one
# decimal?

# %%
answer = None  # write a number of GB


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


check(answer, round(7 * curves["stage 3"][N == 8].item(), 1))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
whole = 7 * (2 + 2 + 12)  # GB: weights and gradients in 16 bits; a copy and two moments in 32
answer = round(whole / 8, 1)
print(answer)
assert answer == round(7 * curves["stage 3"][N == 8].item(), 1), "As the last curve says."
assert 8 * answer == 7 * curves["plain"][N == 8].item(), "Plain training keeps all of it."

# %% [markdown]
# **2.** Write the norm of the whole gradient from the shards.


# %%
def whole_norm(shard):
    """The norm of the vector whose shards lie on the ranks, as a number."""
    ...


# %%
def check_norm(function):
    """Run it on two ranks and compare with the norm of the whole vector."""
    vector = torch.arange(8.0)

    def on_a_rank():
        accelerator = Accelerator()
        return function(vector.chunk(accelerator.num_processes)[accelerator.process_index])

    found = notebook_launcher(on_a_rank, num_processes=2, device="cpu")[0]
    if found is None:
        return "Not answered yet."
    if abs(found - vector.norm()) < 1e-4:
        return f"Yes: {found:.3f}."
    return f"Not right: for 0, 1, ... 7 in two shards {found:.3f}, in place of {vector.norm():.3f}."


print(check_norm(whole_norm))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def whole_norm_solution(shard):
    squared = shard.square().sum()
    dist.all_reduce(squared)
    return squared.sqrt().item()


assert check_norm(whole_norm_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - Sharding keeps everything once. Reduce-scatter and all-gather move the parts.
# - Stages 1 and 2 send what data parallelism sends; stage 3 sends half as much again.
# - The backward of an all-gather is a reduce-scatter.
#
# ## What next
#
# - [Tensor parallelism by hand](08_tensor_parallel.ipynb): divide the computation too
# - [Models that do not fit](../../docs/guides/strategies.md)
