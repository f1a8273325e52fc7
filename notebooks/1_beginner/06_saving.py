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
# # Save and use your model
#
# **What you will see:** the trained network in your notebook, then in a file, then back from the file,
# with the same answers each time; and a training that stops and goes on another day.
#
# **You need:** [the quickstart](01_quickstart.ipynb). Six minutes to read, ten seconds to run.

# %% [markdown]
# ## 1. Train something
#
# The digits again, and the same small network as before. There is one new thing: `main` can load what
# was saved before it goes on. We need that in part 4.

# %%
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

digits = load_digits()
pictures = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
to_learn = TensorDataset(pictures[:1500], labels[:1500])
folder = Path(tempfile.mkdtemp())  # a folder of its own; yours would be "my_model"


def new_network():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def main(rounds, load_from=None, save_to=None):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = new_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    loader = DataLoader(to_learn, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if load_from is not None:
        accelerator.load_state(load_from)  # the network, the optimizer and the dice, as they were
    for _ in range(rounds):
        for picture, label in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(picture), label))
            optimizer.step()
    if save_to is not None:
        accelerator.save_state(save_to)
    return model


# %%
run = notebook_launcher(main, args=(4,), num_processes=2, device="auto-or-cpu")

# %% [markdown]
# ## 2. Use it
#
# **Before you run:** two workers trained two copies of the network. Which of them should you use?
#
# * a. the better one of the two
# * b. it does not matter: they are equal
# * c. the mean of both

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def read(network, picture):
    """Which digit does the network see?"""
    with torch.no_grad():
        return network(picture.unsqueeze(0)).argmax().item()


knobs = zip(run[0].parameters(), run[1].parameters(), strict=True)
equal = all(torch.equal(mine, yours) for mine, yours in knobs)
print(compare(guess, "b" if equal else "a"))
assert equal, "Both workers hold the same network, to the last bit."

# %% [markdown]
# They compared notes after every step, so they stayed equal. Take `run[0]`. It is an ordinary PyTorch
# network in your notebook, on the CPU, ready to use.

# %%
import matplotlib.pyplot as plt

network = run[0]
figure, places = plt.subplots(1, 8, figsize=(7, 1.5))
for number, place in enumerate(places, start=1500):
    seen, truth = read(network, pictures[number]), labels[number].item()
    place.imshow(digits.images[number], cmap="gray_r")
    place.set_title(f"{seen}" if seen == truth else f"{seen}, not {truth}", fontsize=9)
    place.axis("off")
figure.suptitle("What the network sees", y=1.05)
plt.show()

# %% [markdown]
# ## 3. Keep it in a file
#
# When you close the notebook, the network is gone. Save its **weights**: the numbers that it learned,
# one for each knob. The class stays in your code.

# %%
torch.save(network.state_dict(), folder / "digits.pt")
print(f"{(folder / 'digits.pt').stat().st_size / 1000:.0f} kB in digits.pt")

# %% [markdown]
# Tomorrow, in another notebook: make an empty network of the same kind, and put the weights into it.

# %%
tomorrow = new_network()
tomorrow.load_state_dict(torch.load(folder / "digits.pt"))

exam = pictures[1500:]
with torch.no_grad():
    assert torch.equal(tomorrow(exam), network(exam)), "The file gives the very same answers."
    right = (tomorrow(exam).argmax(dim=1) == labels[1500:]).float().mean().item()
print(f"the network from the file reads {right:.0%} of the exam pictures")

# %% [markdown]
# ## 4. Stop today, go on tomorrow
#
# A long training needs more than the weights. The optimizer has a memory of its own (which way did it
# turn each knob, and how far?), and so have the dice that shuffle the pictures. All of it together is
# a **checkpoint**. `accelerator.save_state(folder)` writes one, `accelerator.load_state(folder)` takes
# it up again.

# %%
today = notebook_launcher(
    main, args=(2, None, folder / "checkpoint"), num_processes=2, device="auto-or-cpu"
)
print(sorted(path.name for path in (folder / "checkpoint").iterdir()))

# %%
going_on = notebook_launcher(
    main, args=(2, folder / "checkpoint"), num_processes=2, device="auto-or-cpu"
)

# %% [markdown]
# Two rounds today and two rounds tomorrow should be the same as four rounds at once. Are they?

# %%
at_once = run.history["loss"]
in_parts = today.history["loss"] + going_on.history["loss"]

plt.figure(figsize=(7, 2.8))
plt.plot(at_once, color="#1763a6", linewidth=5, alpha=0.4, label="four rounds at once")
plt.plot(in_parts, color="#b04a00", linestyle="dashed", label="two, a break, two more")
plt.axvline(len(today.history["loss"]), color="#57606a", linestyle="dotted")
plt.xlabel("step")
plt.ylabel("loss")
plt.title("A break changes nothing")
plt.legend()
plt.show()

apart = max(abs(a - b) for a, b in zip(at_once, in_parts, strict=True))
assert apart < 1e-3, "The same curve, as if there had been no break."

# %% [markdown]
# ## 5. A mistake worth making
#
# You write the name of the folder wrong. What then?

# %%
try:
    notebook_launcher(main, args=(2, folder / "chekpoint"), num_processes=2, device="auto-or-cpu")
except Exception as error:
    print(f"{type(error).__name__}: {error}".replace(str(folder), "folder"))

# %% [markdown]
# Nothing was trained from zero by accident. The message says what it looked for, and what to do.

# %% [markdown]
# ## Exercises
#
# **1.** You want to show your network to a friend, who will use it and not train it further. What do
# you send?
#
# * a. the weights (`digits.pt`) and the code of the network
# * b. the whole checkpoint folder
# * c. a picture of the curve

# %%
answer = None  # write "a", "b" or "c"


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


with torch.no_grad():
    weights_suffice = torch.equal(tomorrow(exam), network(exam))
truth = "a" if weights_suffice else "b"
check(answer, truth)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "a"  # the optimizer's memory is of no use to who does not train
assert answer == truth
weights = (folder / "digits.pt").stat().st_size
everything = sum(path.stat().st_size for path in (folder / "checkpoint").iterdir())
assert everything > 2 * weights, "The optimizer keeps two numbers for each knob."
print(f"{weights / 1000:.0f} kB of weights, {everything / 1000:.0f} kB in the checkpoint")

# %% [markdown]
# **2.** The training was saved by two workers. Your laptop can run only one. Can it go on from there?
# Try it: the next cell loads the checkpoint with one worker.

# %%
answer = None  # write "yes" or "no"

# %%
smaller = notebook_launcher(
    main, args=(1, folder / "checkpoint"), num_processes=1, device="auto-or-cpu"
)
goes_on = smaller.history["loss"][0] < at_once[0] / 2
check(answer, "yes" if goes_on else "no")

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "yes"
first, last = smaller.history["loss"][0], today.history["loss"][-1]
assert first < at_once[0] / 2, "It began far below the loss of guessing."
print(f"two workers stopped at a loss of {last:.2f}, one went on at {first:.2f}: {answer}")

# %% [markdown]
# ## Remember
#
# * `run[0]` is the trained network; all workers have the same one.
# * To use it later: `torch.save(network.state_dict(), file)`.
# * To train further later: `accelerator.save_state(folder)` and `accelerator.load_state(folder)`.
#
# ## What next
#
# * [What went wrong?](07_errors.ipynb): how to read an error.
