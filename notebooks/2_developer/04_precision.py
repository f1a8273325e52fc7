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
# # Half the bits: mixed precision
#
# **What you will see.** What 16 bits can hold and what they lose, which parts of a loop run in them, what
# fp16 needs that bf16 does not, and how this goes together with accumulation.
#
# **You need** [the effective batch](03_accumulation.ipynb). About 12 minutes to read, 20 seconds to run.

# %% [markdown]
# ## 1. What fits into 16 bits
#
# A floating point number has bits for its size (exponent) and bits for its digits (mantissa). Two formats
# of 16 bits are in use. **fp16** spends more on digits, **bf16** more on size.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, PrecisionPicker, notebook_launcher

print(f"{'':10} {'largest':>10} {'smallest normal':>17} {'step after 1':>14}")
for name, dtype in {
    "float32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}.items():
    facts = torch.finfo(dtype)
    print(f"{name:10} {facts.max:>10.1e} {facts.smallest_normal:>17.1e} {facts.eps:>14.1e}")

# %% [markdown]
# So 70,000 is too large for fp16, and 1.001 is not in bf16: between 1 and 1.0078 it has no number. A
# **normal** number has all of its digits. Below the smallest of them numbers go on for a while, with
# fewer and fewer digits, and then there is only zero.
#
# **Predict before you run.** A weight of 1.0 in bf16 gets an update of 0.001, a thousand times. Where does
# it end? a. at 2.0 · b. at 1.0 · c. somewhere between

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


weight = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    weight += 0.001
print(f"after 1,000 updates of 0.001: {weight.item()}")
print(compare(guess, {2.0: "a", 1.0: "b"}.get(weight.item(), "c")))
assert weight == 1.0, "Each update is less than half a step, so it is rounded away."

# %% [markdown]
# That is why it is called **mixed** precision: the weights and the optimizer stay in float32, and only
# what is heavy and forgiving (products of matrices) runs in 16 bits.
#
# ## 2. One argument
#
# `mixed_precision="bf16"` at the launch, or in `Accelerator(...)`. The loop stays as it is. Let us look
# at what is what inside.


# %%
def look():
    accelerator = Accelerator()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    seen = {}
    net[0].register_forward_hook(lambda layer, given, out: seen.update(inside=out.dtype))
    model = accelerator.prepare(net)
    out = model(torch.rand(8, 64, device=accelerator.device))
    accelerator.backward(out.square().mean())
    return {
        "weights": net[0].weight.dtype,
        "between the layers": seen["inside"],
        "what the model returns": out.dtype,
        "gradients": net[0].weight.grad.dtype,
    }


facts = notebook_launcher(look, num_processes=1, mixed_precision="bf16", device="auto-or-cpu")[0]
for what, dtype in facts.items():
    print(f"{what}: {dtype}")
assert facts["weights"] == facts["gradients"] == torch.float32
assert facts["between the layers"] == torch.bfloat16

# %% [markdown]
# The outputs come back in float32, so your loss is computed exactly. Not every chip computes 16 bits
# itself; some only imitate it, and are slower for it. The picker says which is which here:

# %%
PrecisionPicker()

# %% [markdown]
# ## 3. Does it learn as well?

# %%
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)


def train(batch_size=32, accumulate=1, epochs=4):
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x[:1536], y[:1536]), batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    updates = skipped = 0
    for _ in range(epochs):
        for picture, label in loader:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(picture), label))
                optimizer.step()
                skipped += accelerator.optimizer_step_was_skipped
                optimizer.zero_grad()
            updates += accelerator.sync_gradients
    return updates, int(skipped)


ALIKE = {"device": "cpu", "env": {"OMP_NUM_THREADS": "1"}}  # the same on every computer
trained = {
    precision: notebook_launcher(train, num_processes=1, mixed_precision=precision, **ALIKE)
    for precision in ("no", "bf16", "fp16")
}

# %%
plt.figure(figsize=(7, 3))
styles = {"no": ("solid", "#1763a6"), "bf16": ("dashed", "#b04a00"), "fp16": ("dotted", "#2f7031")}
for precision, run in trained.items():
    style, color = styles[precision]
    curve = torch.tensor(run.history["loss"]).unfold(0, 12, 1).mean(dim=1)
    plt.plot(curve, linestyle=style, color=color, label=precision)
plt.xlabel("update")
plt.ylabel("loss, smoothed")
plt.title("Half the bits, the same learning")
plt.legend()
plt.show()

last = {precision: sum(run.history["loss"][-48:]) / 48 for precision, run in trained.items()}
print({precision: round(loss, 4) for precision, loss in last.items()})
for precision in ("bf16", "fp16"):
    assert abs(last[precision] - last["no"]) < 0.05, "The noise of the batches is larger."

# %% [markdown]
# ## 4. What fp16 needs
#
# Gradients are often tiny. The last number of fp16 above zero is 6e-8, and what is below half of that is
# rounded to zero:

# %%
tiny = torch.tensor([1e-4, 1e-6, 4e-8, 2e-8])
for wanted, got in zip(tiny.tolist(), tiny.half().tolist(), strict=True):
    print(f"{wanted:.0e} is {got:.2e} in fp16")
assert tiny.half()[2] > 0 and tiny.half()[3] == 0

# %% [markdown]
# So under fp16 the loss is multiplied by a large number before backward (the **loss scale**), and
# gradients are divided by it before the update. If one overflows (is infinite), that update is skipped
# and the scale is halved. `prepare` and `accelerator.backward` do all of it. You see it only in
# `accelerator.optimizer_step_was_skipped`.
#
# Here is a run that begins with a scale that is far too large: 2 to the power of 40.
#
# **Predict before you run.** fp16 ends at 65,504, about 2 to the power of 16. Are updates skipped
# a. never · b. all of them · c. some at the beginning?

# %%
guess = None  # write "a", "b" or "c"

# %%
from notebook_accel import GradScalerKwargs


def too_much_scale():
    accelerator = Accelerator(kwargs_handlers=[GradScalerKwargs(init_scale=2.0**40)])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x[:1536], y[:1536]), 32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    skipped = []
    for picture, label in loader:
        accelerator.backward(cross_entropy(model(picture), label))
        optimizer.step()
        skipped.append(accelerator.optimizer_step_was_skipped)
        optimizer.zero_grad()
    return skipped


skipped = notebook_launcher(too_much_scale, num_processes=1, mixed_precision="fp16", **ALIKE)[0]
print("".join("x" if one else "." for one in skipped), f" {sum(skipped)} skipped (x)")
print(compare(guess, "a" if not any(skipped) else "b" if all(skipped) else "c"))
assert skipped[0] and not skipped[-1], "The scale found its size."

# %% [markdown]
# bf16 has the range of float32. Nothing overflows, no scale is needed. Where the chip has bf16 (NVIDIA
# from Ampere on, TPUs, new CPUs), take it; on a T4 or V100 take fp16.
#
# ## 5. bf16, then accumulation 4
#
# Two ranks on the CPU in bf16, 1,536 samples, `batch_size=16`, and accumulation 4. **Predict the updates
# per epoch, then run.**

# %%
updates_per_epoch = None  # write a number

# %%
both = notebook_launcher(train, args=(16, 4, 1), num_processes=2, mixed_precision="bf16", **ALIKE)
print(compare(updates_per_epoch, both[0][0]))
assert both[0][0] == both[1][0] == 1536 // (16 * 2 * 4), "On both ranks, of course."

# %% [markdown]
# 1,536 samples / 2 ranks / 16 a batch = 48 micro-batches a rank; 4 of them make an update: 12. Precision
# has no say in it.
#
# ## 6. A mistake worth making
#
# Under fp16 the old `loss.backward()` leaves the loss unscaled. There is no scale to divide by then, and
# torch stops the run, in words about its own insides. The guard rail before it says what to write.


# %%
def old_backward():
    accelerator = Accelerator()
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for picture, label in loader:
        cross_entropy(model(picture), label).backward()
        optimizer.step()
        optimizer.zero_grad()


try:
    notebook_launcher(old_backward, num_processes=1, mixed_precision="fp16", **ALIKE)
except AssertionError as error:
    print(f"torch: {error}")

from notebook_accel import runs

assert "accelerator.backward" in runs.last().logs(0), "The guard rail says what to write."

# %% [markdown]
# ## Exercises
#
# **1.** Clipping needs the true size of the gradients. Under fp16 they are scaled when backward ends.
# `accelerator.clip_grad_norm_(model.parameters(), 1.0)` divides by the scale first. Write
# `gradient_norm(accelerator, model)`, which gives the norm and clips nothing.


# %%
def gradient_norm(accelerator, model):
    """Give the norm of all gradients as a number."""
    ...


# %%
def check_norm(function):
    def on_a_rank():
        accelerator = Accelerator()
        torch.manual_seed(0)
        net = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(net, optimizer)
        accelerator.backward(cross_entropy(model(x[:32]), y[:32]))
        return function(accelerator, model)

    plain, scaled = (
        notebook_launcher(on_a_rank, num_processes=1, mixed_precision=precision, **ALIKE)[0]
        for precision in ("no", "fp16")
    )
    if plain is None:
        return "Not answered yet."
    if abs(plain - scaled) < 0.01 * plain:
        return f"Yes: {plain:.3f} without fp16, {scaled:.3f} with it."
    return f"Not right: the same step gave {scaled:.3f} under fp16 in place of {plain:.3f}."


print(check_norm(gradient_norm))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def gradient_norm(accelerator, model):
    return float(accelerator.clip_grad_norm_(model.parameters(), float("inf")))


said = check_norm(gradient_norm)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# **2.** Which of these numbers survive a trip through fp16, and which through bf16, to within 1 %?
# 100,000 · 0.00000001 · 3.14159

# %%
in_fp16, in_bf16 = None, None  # write two lists, like [3.14159], in any order


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


def survivors(dtype):
    numbers = [0.00000001, 3.14159, 100_000.0]
    return [n for n in numbers if abs(torch.tensor(n).to(dtype).item() - n) <= 0.01 * n]


print("fp16: ", end="")
check(in_fp16 and sorted(in_fp16), survivors(torch.float16))
print("bf16: ", end="")
check(in_bf16 and sorted(in_bf16), survivors(torch.bfloat16))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
in_fp16 = [3.14159]  # one is too large, one too small
in_bf16 = [0.00000001, 3.14159, 100_000.0]  # all of them, with two or three digits
assert (in_fp16, in_bf16) == (survivors(torch.float16), survivors(torch.bfloat16))

# %% [markdown]
# ## Remember
#
# - `mixed_precision="bf16"`, at the launch or in `Accelerator`. Weights stay in float32.
# - bf16 where the chip has it, fp16 on older GPUs. fp16 brings the loss scale along, and may skip updates.
# - Always `accelerator.backward` and `accelerator.clip_grad_norm_`.
#
# ## What next
#
# - [Stop and go on](05_checkpoints.ipynb): checkpoints that survive anything.
# - [Numerics of fp16, bf16 and fp8](../3_researcher/10_numerics.ipynb), for researchers
