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
# # Tensor parallelism by hand: cut a layer, compute its parts, add
#
# **What you will see.** How a pair of linear layers is divided by columns and by rows so that
# two ranks need one addition, which gradient rule makes backward right, and where the cut must
# not go.
#
# **You need** [sharding](07_sharding.ipynb) and the chain rule for matrices. About 15 minutes to
# read, half a minute to run. Two ranks on the CPU.

# %% [markdown]
# ## 1. Two cuts of a matrix product
#
# Let $Y = XA$ with $X$ of shape (batch, in) and $A$ of shape (in, out).
#
# - **By columns**: $A = [A_1, A_2]$ gives $Y = [XA_1, XA_2]$. Each rank needs all of $X$ and
#   makes half of $Y$'s columns.
# - **By rows**: $A = \binom{A_1}{A_2}$, $X = [X_1, X_2]$ gives $Y = X_1A_1 + X_2A_2$. Each rank
#   needs half of $X$'s columns and makes a summand of $Y$.
#
# An activation function works element by element, so it can follow a cut by columns. Hence the
# pattern of Megatron-LM (Shoeybi et al. 2019, section 3): first layer by columns, second by
# rows, one all-reduce at the end.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import Accelerator, TensorParallel, notebook_launcher

torch.manual_seed(0)
X = torch.randn(16, 8)
A, B = torch.randn(8, 32) / 3, torch.randn(32, 8) / 6
whole = torch.tanh(X @ A) @ B
parts = [torch.tanh(X @ a) @ b for a, b in zip(A.chunk(2, 1), B.chunk(2, 0), strict=True)]
torch.testing.assert_close(parts[0] + parts[1], whole)
print("two halves, computed apart, add up to the whole")

# %% [markdown]
# ## 2. Backward needs the mirror image
#
# The sum at the end is an all-reduce in forward, and nothing in backward: each summand's
# gradient is the gradient of the sum. At the beginning it is the other way round: $X$ is used by
# both ranks, so its gradient is the sum of both ranks' parts: nothing in forward, an all-reduce
# in backward. Megatron calls these two $g$ and $f$.


# %%
class F(torch.autograd.Function):
    """Before a cut by columns: forward does nothing, backward adds over ranks."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class G(torch.autograd.Function):
    """After a cut by rows: forward adds over ranks, backward does nothing."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


# %%
def by_hand(with_f=True):
    """Forward and backward of the pair on half of its weights; give output and gradients."""
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    x = X.clone().requires_grad_()
    a = A.chunk(size, 1)[rank].clone().requires_grad_()
    b = B.chunk(size, 0)[rank].clone().requires_grad_()
    seen = F.apply(x) if with_f else x
    out = G.apply(torch.tanh(seen @ a) @ b)
    out.square().sum().backward()
    return out, x.grad, a.grad


# %% [markdown]
# **Predict before you run.** Without `F`, which is wrong? a. the output · b. the gradient of `a`
# · c. the gradient of `x`


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
x, a, b = (t.clone().requires_grad_() for t in (X, A, B))
out = torch.tanh(x @ a) @ b
out.square().sum().backward()
right = (out.detach(), x.grad, a.grad.chunk(2, 1)[0])

with_f = notebook_launcher(by_hand, (True,), num_processes=2, device="cpu")[0]
without = notebook_launcher(by_hand, (False,), num_processes=2, device="cpu")[0]
for found, true in zip(with_f, right, strict=True):
    torch.testing.assert_close(found, true, atol=1e-4, rtol=1e-4)
wrong = [
    name
    for name, found, true in zip(
        "abc", (without[0], without[2], without[1]), (right[0], right[2], right[1]), strict=True
    )
    if not torch.allclose(found, true, atol=1e-3)
]
print(compare(guess, ", ".join(wrong)))
assert wrong == ["c"], "Layers before this one would be trained with half of their gradient."

# %% [markdown]
# ## 3. What travels
#
# Two all-reduces of an activation a pair and step: one in forward, one in backward. Their size
# is batch x width, not the number of parameters, and nothing can be computed meanwhile. That is
# why tensor parallelism stays within a machine with fast links, while data parallelism goes
# between machines.

# %%
widths = torch.tensor([1024, 4096, 12288])
tokens = 4 * 2048
figure, plot = plt.subplots(figsize=(7, 2.6))
position = torch.arange(3)
plot.bar(
    position - 0.2,
    2 * 2 * tokens * widths * 2 / 1e9,
    0.4,
    color="#b04a00",
    hatch="//",
    label="tensor parallel: activations, must be waited for",
)
plot.bar(
    position + 0.2,
    2 * 8 * widths**2 * 2 / 1e9,
    0.4,
    color="#1763a6",
    label="data parallel: gradients, hidden behind backward",
)
plot.set_xticks(position, [f"width {w}" for w in widths.tolist()])
plot.set(
    title="What a rank sends for one pair of layers, 8,192 tokens, 16 bits",
    ylabel="GB a step",
    yscale="log",
)
plot.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## 4. Where the cut must not go
#
# Attention is cut by **heads**: each head is a little model of its own. Cutting *within* a head
# would need an addition before the softmax, which is not linear. So the number of heads must be
# divisible by the number of ranks. Layer norms and dropout between the pairs see whole rows, and
# are computed on every rank, with the same random numbers.
#
# With the toolkit, a plan says which layer is cut which way.


# %%
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.tp_plan = {"up": "colwise", "down": "rowwise"}
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def train(num_steps=20):
    accelerator = Accelerator()
    net = Pair()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), X.roll(1, 1))
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


halves = TensorParallel(size=2)
one = notebook_launcher(train, num_processes=1, device="cpu")[0]
two = notebook_launcher(train, num_processes=2, device="cpu", strategy=halves)[0]
assert max(abs(p - q) for p, q in zip(one, two, strict=True)) < 1e-4, "The same losses."


# %% [markdown]
# What a rank keeps of a weight: the weight is a `DTensor` of torch now, which knows the shape of
# the whole and how it lies over ranks. `to_local()` is this rank's part. (A `Linear` stores $A$
# transposed, so its columns are the rows of `weight`.)


# %%
def kept():
    model = Accelerator().prepare(Pair())
    return {name: tuple(p.to_local().shape) for name, p in model.named_parameters()}


own = notebook_launcher(kept, num_processes=2, device="cpu", strategy=halves)[0]
for name, p in Pair().named_parameters():
    print(f"{name:11} whole {tuple(p.shape)!s:8} on each of two ranks {own[name]}")
assert own["up.weight"] == (16, 8) and own["down.weight"] == (8, 16)

# %% [markdown]
# **A mistake worth making.** The 32 columns cannot be dealt to three ranks evenly. That is an
# error before anything is cut:

# %%
from IPython import get_ipython

try:
    notebook_launcher(kept, num_processes=3, device="cpu", strategy=TensorParallel(size=3))
except ValueError as error:
    get_ipython().showtraceback()
    assert "32 is not divisible by 3" in str(error)

# %% [markdown]
# ## Exercises
#
# **1.** A model has 12 attention heads. Over how many ranks can its attention be divided?

# %%
answer = None  # write all such numbers of ranks, as a set: {...}


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


heads = torch.arange(12)
possible = {n for n in range(1, 13) if len({len(part) for part in heads.tensor_split(n)}) == 1}
check(answer and set(answer), possible)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = {n for n in range(1, 13) if 12 % n == 0}
print(answer)
assert answer == possible, "Every rank gets as many whole heads as the others."

# %% [markdown]
# **2.** Two layers *both* cut by columns need an all-gather in between. Write the forward of
# such a pair for rank `r`, given all parts as a list, and check it.


# %%
def columns_twice(x, a_parts, b_parts, r):
    """Rank r's columns of tanh(x A) B."""
    ...


# %%
def check_columns(function):
    """Compare both ranks' columns with the two halves of the whole."""
    for r, truth in enumerate(whole.chunk(2, 1)):
        found = function(X, A.chunk(2, 1), B.chunk(2, 1), r)
        if found is None:
            return "Not answered yet."
        if found.shape != truth.shape:
            return (
                f"Not right: rank {r} gave {tuple(found.shape)} in place of {tuple(truth.shape)}."
            )
        if not torch.allclose(found, truth, atol=1e-4):
            got, wanted = found[0, 0].item(), truth[0, 0].item()
            return f"Not right: rank {r}'s first number is {got:.4f} in place of {wanted:.4f}."
    return "Yes: side by side, the two ranks' columns are the whole."


print(check_columns(columns_twice))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def columns_twice_solution(x, a_parts, b_parts, r):
    gathered = torch.cat(
        [torch.tanh(x @ a) for a in a_parts], 1
    )  # an all-gather: every rank's half
    return gathered @ b_parts[r]


assert check_columns(columns_twice_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - Columns first, rows second: one addition for a pair of layers.
# - What is nothing in forward is a sum in backward, and the other way round.
# - Cut attention by heads. Keep tensor parallelism where links are fast.
#
# ## What next
#
# - [Pipelines and their bubble](09_pipeline.ipynb)
# - [Models that do not fit](../../docs/guides/strategies.md)
