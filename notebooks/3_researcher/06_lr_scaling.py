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
# # Scale the learning rate with the batch: linear for SGD, square root for Adam
#
# **What you will see.** Why a larger batch allows a larger step, where the rules come from, and
# the batch size at which they end.
#
# **You need** [one loop on any hardware](01_one_loop.ipynb), and expectation and variance. About
# 15 minutes to read, about a minute to run.

# %% [markdown]
# ## 1. What changes with N
#
# With a fixed batch per rank, N ranks make a batch N times as large, and N times fewer steps a
# pass. Each step's gradient is a mean over more samples:
#
# $$g_B = \nabla L + \varepsilon, \qquad \mathrm{E}\,\varepsilon = 0, \quad \mathrm{Var}\,\varepsilon \approx \Sigma / B .$$
#
# If nothing else changes, N times fewer steps of the same length go less far. The step has to
# grow.
#
# - **SGD, linear rule**: $k$ steps with rate $\eta$ and batch $B$ move by $-\eta \sum g$. One
#   step with batch $kB$ and rate $k\eta$ moves by the same, as long as the gradient hardly
#   changes over these $k$ steps (Goyal et al. 2017, section 2.1). The noise of the path agrees
#   as well: $k\eta^2\Sigma/B$ both ways.
# - **Adam, square-root rule**: Adam divides by the root mean square of the gradient. Where noise
#   rules, this divisor is $\sqrt{\Sigma/B}$ and falls by $\sqrt{k}$, so each step is already
#   longer by $\sqrt{k}$; another factor of $\sqrt{k}$ makes $k$ (Malladi et al. 2022, section
#   4).

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


def train(batch, rate, optimizer_class=torch.optim.SGD, num_samples=1536 * 6):
    """Train on batches of ``batch`` over all ranks, until ``num_samples`` have been seen."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = optimizer_class(net.parameters(), lr=rate)
    loader = DataLoader(data, batch_size=batch // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    seen = 0
    while seen < num_samples:
        for a, b in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(a), b))
            optimizer.step()
            seen += batch
    with torch.no_grad():
        inputs, labels = x[:1536].to(accelerator.device), y[:1536].to(accelerator.device)
        return nn.functional.cross_entropy(model(inputs), labels).item()


# %% [markdown]
# **Predict before you run.** SGD with batch 16 and rate 0.05 ends at some loss. Batch 64 sees as
# many samples. Which rate ends nearest to it? a. 0.05 · b. 0.10 · c. 0.20


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
small = notebook_launcher(train, (16, 0.05), num_processes=2, device="cpu")[0]
large = {
    rate: notebook_launcher(train, (64, rate), num_processes=2, device="cpu")[0]
    for rate in (0.05, 0.10, 0.20)
}
nearest = min(large, key=lambda rate: abs(large[rate] - small))
print(compare(guess, {0.05: "a", 0.10: "b", 0.20: "c"}[nearest]))
print(f"batch 16, rate 0.05: {small:.3f}")
for rate, loss in large.items():
    print(f"batch 64, rate {rate:.2f}: {loss:.3f}")
assert nearest == 0.20, "Four times the batch, four times the rate."

# %% [markdown]
# ## 2. Where the rule ends
#
# The linear rule needs a gradient that hardly changes during $k$ steps. It also cannot outrun
# curvature: a step longer than $2/\lambda_\text{max}$ of the loss diverges, whatever the noise.
# So a larger batch helps up to a **critical batch size**, where noise and signal are equal
# (McCandlish et al. 2018):
#
# $$B_\text{crit} \approx \frac{\mathrm{tr}\,\Sigma}{\lVert \nabla L \rVert^2}.$$
#
# It can be measured from the gradients of single samples.

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def noise_scale(net, num=1500):
    """Estimate tr(Sigma) / |gradient|^2 at the present weights, from single samples."""
    names = dict(net.named_parameters())

    def loss_of(parameters, one, label):
        out = torch.func.functional_call(net, parameters, (one[None],))
        return nn.functional.cross_entropy(out, label[None])

    grads = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(names, x[:num], y[:num])
    flat = torch.cat([g.flatten(1) for g in grads.values()], 1)
    mean, spread = flat.mean(0), flat.var(0).sum()
    return (spread / mean.square().sum()).item()


scales = []
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for step in range(240):
    if step % 30 == 0:
        scales.append((step, noise_scale(net)))
    rows = torch.randint(0, 1536, (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
    optimizer.step()

figure, plot = plt.subplots(figsize=(7, 2.6))
plot.plot(*zip(*scales, strict=True), "o-", color="#6f42a8")
plot.set(
    title="The batch that is worth its samples grows while the net learns",
    xlabel="step",
    ylabel="noise scale, samples",
    yscale="log",
)
plt.show()
assert max(late for _, late in scales[4:]) > scales[0][1], (
    "Late in training the gradient is small beside its noise."
)

# %% [markdown]
# At the beginning all samples agree on the direction, and a batch of a few is enough; later they
# disagree. That is one reason for the **warmup** of large-batch training (Goyal et al. 2017,
# section 2.2), and for batches that grow.

# %% [markdown]
# ## 3. Adam
#
# The same experiment. The rule of the square root says twice the rate for four times the batch.

# %%
adam = torch.optim.Adam
small_adam = notebook_launcher(train, (16, 2e-3, adam), num_processes=2, device="cpu")[0]
rates = (2e-3, 4e-3, 8e-3)
large_adam = [
    notebook_launcher(train, (64, r, adam), num_processes=2, device="cpu")[0] for r in rates
]
print(f"batch 16, rate 0.002: {small_adam:.4f}")
for rate, loss in zip(rates, large_adam, strict=True):
    print(f"batch 64, rate {rate:.3f}: {loss:.4f}")
assert abs(large_adam[1] - small_adam) < abs(large_adam[0] - small_adam), (
    "The same rate is too slow."
)

# %% [markdown]
# On a task as easy as this the noise is small, and even the linear rate works. The square root
# is what holds where noise rules, and the safer start of a search.
#
# The toolkit does not change your rate. It says what changed, once, and `accelerator.explain()`
# prints both values.

# %% [markdown]
# ## Exercises
#
# **1.** You trained with batch 32, SGD, rate 0.1, on one device. Now you have 8 ranks with 32
# samples each. Which rate do you try first, to three decimals?

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


check(answer, round(0.1 * (8 * 32) / 32, 3))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def end_of_steps(rate, num, slope=1.0):
    """Where ``num`` steps of SGD lead while the gradient does not change."""
    weight = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=rate)
    for _ in range(num):
        weight.grad = torch.tensor(slope)
        optimizer.step()
    return weight.item()


answer = 0.8
print(answer)
assert abs(end_of_steps(answer, 1) - end_of_steps(0.1, 8)) < 1e-6, "One step goes as far as eight."

# %% [markdown]
# **2.** And with Adam, rate 0.001, on 16 ranks? Again to three decimals.

# %%
answer = None  # write a number

# %%
check(answer, round(0.001 * (16 * 32 / 32) ** 0.5, 3))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def drift(rate, batch, num):
    """How far ``num`` steps of Adam lead per unit of gradient, where noise rules its divisor."""
    numbers = torch.Generator().manual_seed(0)
    means = torch.randn(20_000, batch, generator=numbers).mean(1)  # gradients: nothing but noise
    return num * rate / means.square().mean().sqrt().item()


answer = 0.004
print(answer)
ratio = drift(answer, 16 * 32, 1) / drift(0.001, 32, 16)
assert abs(ratio - 1) < 0.05, "One step goes as far as sixteen."

# %% [markdown]
# **3.** The variance of the mean over B samples falls like 1/B: check it for the gradient of a
# linear model, without a launch.


# %%
def variance_of_gradient(batch):
    """The variance, over many batches, of the gradient of a mean over ``batch`` samples."""
    ...


# %%
def check_variance(function):
    """Compare its values for batches of 8 and of 32."""
    small, large = function(8), function(32)
    if small is None or large is None:
        return "Not answered yet."
    told = f"{small:.3g} for 8 samples and {large:.3g} for 32"
    if 3 * large < small < 5 * large:
        return f"Yes: {told}, about a quarter."
    return f"Not right: {told}, in place of about a quarter, {small / 4:.3g}."


print(check_variance(variance_of_gradient))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def variance_solution(batch, num=3000):
    numbers = torch.Generator().manual_seed(0)
    a = torch.randn(num, batch, generator=numbers)
    target = 2 * a + torch.randn(num, batch, generator=numbers)
    w = 1.0
    gradients = (2 * (w * a - target) * a).mean(1)  # of the mean squared error, for each batch
    return gradients.var().item()


print(check_variance(variance_solution))
assert check_variance(variance_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - SGD: k times the batch, k times the rate. Adam: the square root of k.
# - Both are starting points. They end at the critical batch size, where more samples only repeat
#   each other.
# - Warm up: at the beginning the gradient changes fastest.
#
# ## What next
#
# - [Sharding](07_sharding.ipynb): when the model, not the batch, is too large
# - [A scaling study](12_scaling_study.ipynb)
