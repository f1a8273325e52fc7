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
# # Numbers in 16 and 8 bits: what fp16, bf16 and fp8 can hold, and how training survives them
#
# **What you will see.** How far apart neighboring numbers lie, which gradients vanish, what a
# loss scale does, why weights stay in 32 bits, and how sums go wrong.
#
# **You need** binary fractions and [one loop on any hardware](01_one_loop.ipynb). About 15
# minutes to read, half a minute to run. On the CPU, where every format can be computed.

# %% [markdown]
# ## 1. Four formats
#
# A float is sign, exponent and fraction. The exponent's bits buy **range**, the fraction's bits
# buy **precision**.
#
# | | exponent | fraction | largest | smallest normal | relative step |
# | --- | --- | --- | --- | --- | --- |
# | float32 | 8 | 23 | 3e38 | 1e-38 | 1e-7 |
# | bfloat16 | 8 | 7 | 3e38 | 1e-38 | 0.8 % |
# | float16 | 5 | 10 | 65504 | 6e-5 | 0.1 % |
# | float8 e4m3 | 4 | 3 | 448 | 1.6e-2 | 12 % |

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher

formats = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8 e4m3": torch.float8_e4m3fn,
}
for name, dtype in formats.items():
    info = torch.finfo(dtype)
    print(
        f"{name:12} largest {info.max:9.3g}  smallest normal {info.tiny:9.3g}  step {info.eps:.2g}"
    )

x = torch.logspace(-10, 6, 2000)
figure, plot = plt.subplots(figsize=(7, 3))
styles = ["-", "--", "-.", ":"]
for (name, dtype), style in zip(formats.items(), styles, strict=True):
    error = ((x.to(dtype).float() - x) / x).abs()
    error[~torch.isfinite(error)] = 1
    smooth = error.clamp(1e-9).log10().view(100, 20).amax(1)
    plot.plot(x.view(100, 20)[:, 0], 10**smooth, style, label=name)
plot.set(
    title="Each format is good in a window",
    xscale="log",
    yscale="log",
    xlabel="number",
    ylabel="relative error, at most",
)
plot.legend()
plt.show()

# %% [markdown]
# ## 2. Small gradients vanish in fp16
#
# **Predict before you run.** A gradient of 1e-8 is stored in float16. What is read back? a.
# about 1e-8 · b. 0 · c. an error


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
stored = torch.tensor(1e-8).half().item()
print(compare(guess, "b" if stored == 0 else "a"))
scale = 2.0**16
rescued = (torch.tensor(1e-8) * scale).half().float().item() / scale
print(f"stored {stored}; multiplied by 65536 first: {rescued:.3g}")
assert stored == 0 and abs(rescued - 1e-8) < 1e-10

# %% [markdown]
# That is **loss scaling** (Micikevicius et al. 2018, section 3.2): multiply the loss, so that
# all gradients are multiplied, and divide before the step. The scale is found by trying: double
# it now and then, halve it and skip the step when a gradient overflows. bfloat16 has float32's
# range and needs none.

# %% [markdown]
# ## 3. Why the weights stay in 32 bits
#
# A step changes a weight by perhaps a thousandth of its size. bfloat16's neighbors are 0.8 %
# apart: the change is rounded away, every time.

# %%
weight32, weight16 = torch.ones(()), torch.ones((), dtype=torch.bfloat16)
for _ in range(1000):
    weight32 += 0.001
    weight16 += 0.001
print(f"1 + 1000 x 0.001 = {weight32.item():.3f} in float32, {weight16.item():.3f} in bfloat16")
assert weight16.item() == 1.0, "A thousand steps, and the weight has not moved."

# %% [markdown]
# So *mixed* precision computes in 16 bits and keeps weights, moments and sums in 32. `autocast`
# knows which operations may be cast: products of matrices yes, losses no. On a GPU softmax and
# norms stay in 32 bits too; the list for the CPU is shorter, as the cell shows.


# %%
def dtypes():
    accelerator = Accelerator()
    net = nn.Sequential(nn.Linear(8, 8), nn.Softmax(1))
    seen = {}
    net[0].register_forward_hook(lambda m, i, out: seen.update(linear=str(out.dtype)))
    net[1].register_forward_hook(lambda m, i, out: seen.update(softmax=str(out.dtype)))
    model = accelerator.prepare(net)
    model(torch.randn(4, 8)).sum().backward()
    seen.update(weight=str(net[0].weight.dtype), gradient=str(net[0].weight.grad.dtype))
    return seen


seen = notebook_launcher(dtypes, num_processes=1, mixed_precision="bf16", device="cpu")[0]
print(seen)
assert seen["weight"] == seen["gradient"] == "torch.float32"
assert seen["linear"] == "torch.bfloat16"

# %% [markdown]
# ## 4. Sums
#
# A gradient averaged over ranks is a sum. Adding many numbers of one size in a coarse format
# loses each of them once the sum is large: an all-reduce in bfloat16 adds N of them.

# %%
numbers = torch.full((4096,), 0.01)
running = torch.zeros((), dtype=torch.bfloat16)
for number in numbers.bfloat16():
    running += number
print(
    f"exact 40.96; bfloat16, one after the other {running.item():.2f}; "
    f"torch's sum of bfloat16 {numbers.bfloat16().sum().item():.2f} (it adds in float32)"
)
assert running.item() < 10

# %% [markdown]
# FSDP therefore reduces in float32 here unless you say `reduce_dtype`. A comm hook
# (`DDP(comm_hook="bf16")`) halves the bytes of data parallelism, and pays with this rounding;
# with few ranks it is small.

# %% [markdown]
# ## 5. Eight bits
#
# e4m3 has 3 bits of fraction and ends at 448. It is only used for the *inputs* of matrix
# products, each tensor with a scale of its own that moves its largest entry to 448 (Micikevicius
# et al. 2022, "FP8 formats"). Products are added in more bits. Gradients use e5m2: less
# precision, more range.


# %%
def in_8_bits(t, dtype=torch.float8_e4m3fn):
    """Round a tensor to 8 bits with one scale for all of it, and give it back in 32."""
    scale = torch.finfo(dtype).max / t.abs().max()
    return (t * scale).to(dtype).float() / scale


torch.manual_seed(0)
a, b = torch.randn(64, 256), torch.randn(256, 64)
exact = a @ b
errors = {
    "bfloat16": (a.bfloat16().float() @ b.bfloat16().float() - exact).norm() / exact.norm(),
    "8 bits, scaled": (in_8_bits(a) @ in_8_bits(b) - exact).norm() / exact.norm(),
}
outlier = a.clone()
outlier[0, 0] = 100_000.0  # one large entry takes the scale from all others
errors["8 bits, an outlier"] = (in_8_bits(outlier) @ in_8_bits(b) - outlier @ b)[1:].norm() / (
    outlier @ b
)[1:].norm()
for name, error in errors.items():
    print(f"{name:20} relative error {error.item():.4f}")
assert errors["bfloat16"] < errors["8 bits, scaled"] < errors["8 bits, an outlier"] / 2

# %% [markdown]
# A scale for each row instead of one for the tensor ("rowwise") keeps an outlier's harm to its
# row. `mixed_precision="fp8"` uses torchao for all of this: natively on devices with such
# circuits, emulated elsewhere.

# %% [markdown]
# ## Exercises
#
# **1.** What is 2048 + 1 in float16?

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


check(answer, (torch.tensor(2048.0).half() + 1).item())

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 2048  # 10 bits of fraction: from 2048 = 2^11 on, neighbors are 2 apart
print(answer)
assert answer == (torch.tensor(2048.0).half() + 1).item(), "A tie goes to the even neighbor."
assert 2**11 * torch.finfo(torch.float16).eps == 2, "The step at 2048."

# %% [markdown]
# **2.** Write a sum of bfloat16 numbers that keeps what is rounded away and adds it next time
# (Kahan 1965).


# %%
def careful_sum(numbers):
    """Add bfloat16 numbers with two bfloat16 variables."""
    ...


# %%
def check_sum(function):
    """Compare it with a sum of the same numbers in 64 bits."""
    found, truth = function(numbers.bfloat16()), numbers.bfloat16().double().sum().item()
    if found is None:
        return "Not answered yet."
    told = f"4,096 times 0.01 gave {float(found):.2f}"
    if abs(float(found) - truth) < 0.5:
        return f"Yes: {told}."
    return f"Not right: {told} in place of {truth:.2f}."


print(check_sum(careful_sum))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def careful_sum_solution(numbers):
    total = torch.zeros((), dtype=torch.bfloat16)
    lost = torch.zeros((), dtype=torch.bfloat16)
    for number in numbers:
        term = number - lost
        new = total + term
        lost = (new - total) - term
        total = new
    return total


print(check_sum(careful_sum_solution))
assert check_sum(careful_sum_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - Exponent bits buy range, fraction bits precision. bfloat16 has range, float16 precision.
# - fp16 needs a loss scale, bf16 does not, fp8 needs a scale for every tensor.
# - Weights, moments and sums stay in 32 bits.
#
# ## What next
#
# - [How forks, pipes and the pump work](11_processes.ipynb)
# - [Mixed precision](../../docs/guides/precision.md)
