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
# # Train on two workers, without leaving the notebook
#
# A computer has several cores, perhaps several GPUs, and an ordinary training loop uses one of
# them. In this notebook you teach a small network to read handwritten digits, first the ordinary
# way, then with two workers side by side. **Four lines change.**
#
# You need to have seen a PyTorch training loop before; nothing else. A GPU is welcome but not
# needed: every cell runs the same on none, one or two. About ten minutes to read, half a minute
# to run.

# %% [markdown]
# On Colab, Kaggle and the like the toolkit is not there yet. This cell installs it: from its
# wheel, a file that you bring, else from the address in `SOURCE`. Where the toolkit is, the cell does
# nothing.

# %%
import importlib.util
import os
import subprocess
import sys
from glob import glob

SOURCE = None
if importlib.util.find_spec("notebook_accel") is None:
    places = ".", "/content", "/kaggle/input/**"
    wheels = [w for p in places for w in glob(f"{p}/notebook_accel-*.whl", recursive=True)]
    source = max(wheels, key=os.path.getmtime, default=SOURCE)
    if source is None:
        raise ModuleNotFoundError(
            "notebook_accel is not installed, and no notebook_accel-*.whl lies beside this page\n"
            "  why: the project has no public address yet, so nothing can be downloaded\n"
            "  do:  `pip install .` in a copy of the repository; or `make wheel` there, and bring\n"
            "       dist/*.whl here (Colab: files panel; Kaggle: a dataset). Run this cell again"
        )
    pip = [sys.executable, "-m", "pip", "install", "-q", source]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(
            f"pip could not install {source}\n  why: {done.stderr.strip()}\n"
            "  do:  if the internet is off, turn it on (Kaggle: Settings); then run this cell again"
        )

# %% [markdown]
# ## 1. The pictures
#
# scikit-learn comes with 1,797 little pictures of handwritten digits, 8 by 8 gray dots each. We put
# 297 of them aside. The network never sees those while it learns: they are its exam.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digits = load_digits()
pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # dots from 0 to 1
labels = torch.tensor(digits.target)

shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
to_learn = TensorDataset(pictures[shuffled[:1500]], labels[shuffled[:1500]])
exam = TensorDataset(pictures[shuffled[1500:]], labels[shuffled[1500:]])

figure, places = plt.subplots(1, 8, figsize=(8, 1.4))
for place, (picture, label) in zip(places, to_learn, strict=False):
    place.imshow(picture[0], cmap="gray_r")
    place.set_title(label.item())
    place.axis("off")

# %% [markdown]
# ## 2. The network
#
# Two layers look for small shapes (an edge, a curve, a corner); a last one decides which of the ten
# digits these shapes make up.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.decide = nn.Linear(64 * 4 * 4, 10)

    def forward(self, picture):
        return self.decide(self.look(picture).flatten(1))


how_wrong = nn.CrossEntropyLoss()  # one number: 0 is perfect, 2.3 is guessing among ten

# %% [markdown]
# ## 3. The ordinary loop
#
# This is the loop you know. Take a handful of pictures, let the network guess, measure how wrong it
# was, find out which way to turn each of its knobs, turn them a little. Again and again.

# %%
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
loader = DataLoader(to_learn, batch_size=16, shuffle=True)

for epoch in range(3):
    for picture, label in loader:
        optimizer.zero_grad()
        loss = how_wrong(model(picture), label)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: the last batch had loss {loss.item():.3f}")

# %% [markdown]
# ## 4. The four lines
#
# Now two workers share the job. Each has its own copy of the network and gets its own half of the
# pictures. After every handful they compare notes, so that both turn their knobs the same way and
# the two copies stay equal. You write none of that. You change four lines:
#
# ```diff
# + from notebook_accel import Accelerator
#
# + accelerator = Accelerator()                  # who am I, and which device is mine?
#   model = Net()
#   optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
#   loader = DataLoader(to_learn, batch_size=16, shuffle=True)
# + model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # share the work
#
#   for epoch in range(3):
#       for picture, label in loader:
#           optimizer.zero_grad()
#           loss = how_wrong(model(picture), label)
# -         loss.backward()
# +         accelerator.backward(loss)           # compare notes
#           optimizer.step()
# ```
#
# There is one more thing to know, for the exam. Each worker marks only its own share of it, so we
# have to put the shares together before we count. `gather_for_metrics` does that, and it counts
# every picture exactly once.

# %%
from notebook_accel import Accelerator, notebook_launcher


def take_exam(accelerator, model, loader):
    num_right = num_seen = 0
    with torch.no_grad():
        for picture, label in loader:
            guess = model(picture).argmax(dim=1)
            guess, label = accelerator.gather_for_metrics((guess, label))
            num_right += (guess == label).sum().item()
            num_seen += len(label)
    return num_right / num_seen, num_seen


# %% [markdown]
# Everything that a worker shall do goes into one function. What it returns comes back to you.


# %%
def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    loader = DataLoader(to_learn, batch_size=8, shuffle=True)  # 8 for each of two workers
    exam_loader = DataLoader(exam, batch_size=64)
    model, optimizer, loader, exam_loader = accelerator.prepare(
        model, optimizer, loader, exam_loader
    )

    for epoch in range(12):
        for picture, label in loader:
            optimizer.zero_grad()
            loss = how_wrong(model(picture), label)
            accelerator.backward(loss)
            optimizer.step()
        accuracy, num_seen = take_exam(accelerator, model, exam_loader)
        accelerator.log({"accuracy": accuracy})
        if epoch % 3 == 2:
            accelerator.print(f"epoch {epoch}: {accuracy:.1%} of {num_seen} exam pictures right")

    return model, accuracy, num_seen


# %% [markdown]
# ## 5. Go
#
# **Before you run the launch, make a guess.** Two workers run the same `main`. How many times will
# each `epoch ...` line be printed: once or twice? And how many exam pictures will be counted: 297,
# or a few more, because 297 cannot be cut into two equal halves?

# %%
guess_times, guess_pictures = None, None  # write two numbers

# %% [markdown]
# Then run it, and watch the curve. Nobody wrote code for that curve: `accelerator.backward` saw
# every loss.

# %%
run = notebook_launcher(main, num_processes=2, device="auto-or-cpu")


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


print("times printed:   ", compare(guess_times, "".join(run.logs).count("epoch 11:")))
print("pictures counted:", compare(guess_pictures, run[0][2]))

# %% [markdown]
# `accelerator.print` speaks once for all workers, and every picture was counted exactly once.
#
# The first line said where the workers ran. With `device="auto-or-cpu"` two GPUs are used if there
# are two, and two processes on the CPU if not.

# %% [markdown]
# ## 6. What came back
#
# `run[0]` is what worker 0 returned: here the trained network, its accuracy, and how many pictures
# that is of. `run[1]` is the other worker's. Nothing has to be saved to a file and loaded again.

# %%
trained, accuracy, num_seen = run[0]

assert accuracy >= 0.97, f"Only {accuracy:.1%}: let it train longer than 12 epochs."
assert run[1][1] == accuracy, "Both workers marked the same exam, so they should agree."
print(f"It reads {accuracy:.1%} of the digits that it never saw before, and both workers agree.")

# %% [markdown]
# The network is an ordinary `Net` in this notebook now. Show it an exam picture.

# %%
picture, label = exam[0]
with torch.no_grad():
    guess = trained(picture.unsqueeze(0)).argmax().item()

plt.figure(figsize=(1.6, 1.6))
plt.imshow(picture[0], cmap="gray_r")
plt.axis("off")
plt.title(f"guess {guess}, truth {label.item()}", fontsize=9)
plt.show()

# %% [markdown]
# The curve is yours as well: one number per step, the mean over both workers. Did the loss fall as
# far as you thought?

# %%
losses = run.history["loss"]

print(f"{len(losses)} steps, from {losses[0]:.2f} down to {losses[-1]:.4f}")
assert losses[-1] < losses[0] / 2, "The loss should at least have halved."

# %% [markdown]
# ## 7. When something goes wrong
#
# It will, and that is fine. An error in a worker arrives here as itself, with its own name, so you
# can catch it like any other. **Guess first:** do you have to restart the kernel afterwards?


# %%
def clumsy():
    raise ValueError("I dropped the digits")


try:
    notebook_launcher(clumsy, num_processes=2, device="auto-or-cpu")
except ValueError as error:
    print(f"caught: {error}")

again = notebook_launcher(lambda: "still here", num_processes=2, device="auto-or-cpu")
print(again[0], again[1])

# %% [markdown]
# ## Exercises
#
# **1.** With two workers a round through the 1,500 pictures was 94 steps, on 8 pictures from each.
# Now one worker does it all, still with 8 pictures at a time. How many steps is a round then? (The
# last one may have fewer pictures.)

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


def steps_of_a_round():
    accelerator = Accelerator()
    return len(accelerator.prepare(DataLoader(to_learn, batch_size=8)))


alone = notebook_launcher(steps_of_a_round, num_processes=1, device="auto-or-cpu")
check(answer, alone[0])

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 1500 // 8 + 1  # 187 steps on 8 pictures, and one on the last 4
assert answer == alone[0] == 2 * len(losses) // 12, "Twice as many as two workers needed."
check(answer, alone[0])

# %% [markdown]
# **More to try**
#
# * Launch with `num_processes=1` *and* `batch_size=16`. Compare its curve with that of two workers.
# * Press the square stop button in the middle of a run, then look at what you still have.
#
# ## What to remember
#
# * Four lines: the import, `Accelerator()`, `prepare(...)`, `accelerator.backward(loss)`.
# * Put the work into a function and give it to `notebook_launcher`. What it returns is `run[0]`.
# * The batch size is **per worker**: 2 workers with 8 each are one step on 16 pictures.
# * Print with `accelerator.print`, count with `accelerator.gather_for_metrics`.
# * After an error, go on. No restart.
#
# ## What next
#
# * Take a loop of your own, move it into `main()`, and change the four lines.
# * [Pick the chip that does the work](02_devices.ipynb): what "device" means.
# * [One loop for any hardware](03_one_loop.ipynb): why four lines are enough.
