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
# # From the notebook to a script, and back
#
# **What you will see.** A run written as a script, the same script started on two processes from the
# terminal with the same numbers, settings kept in a file that both read, and which setting wins.
#
# **You need** [one loop for any hardware](01_one_loop.ipynb). About 10 minutes to read, 35 seconds to run.

# %% [markdown]
# ## 1. A run that is worth keeping
#
# What a launch runs is a function. For a script it must stand on its own: what it needs, it makes or
# imports. So `main` gets its data from a function.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

NUM_SAMPLES = 1024


def make_data():
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 20, generator=chance)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def main(lr=0.01):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loader = DataLoader(make_data(), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for batch, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), label)
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), reduction="mean").item()
        accelerator.print(f"epoch {epoch} on {accelerator.num_processes} ranks: loss {mean:.5f}")


run = notebook_launcher(main, num_processes=2, device="cpu")

# %% [markdown]
# (On the CPU, so that the numbers can be compared with the script's below, to the digit.)
#
# ## 2. Export it
#
# `run.export_script` writes the function with all it uses: definitions, imports, plain values, and the call.
# Here is how the script begins and ends:

# %%
folder = Path(tempfile.mkdtemp())
script = run.export_script(folder / "train.py")
lines = script.read_text().splitlines()
print(*lines[:16], f"    ... {len(lines) - 22} lines more ...", *lines[-6:], sep="\n")

# %% [markdown]
# ## 3. Start it from the terminal
#
# `notebook-accel launch` starts ranks as the notebook does: free port, one process blamed, nothing left
# behind. It takes Accelerate's options and torchrun's.
#
# **Predict before you run.** Will the script's losses be a. the same, digit by digit · b. close ·
# c. different, because of another random state?

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def terminal(*words):
    """Run a command as a terminal would, in the script's folder, and give what it prints."""
    print("$ notebook-accel", *words)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "notebook_accel", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def losses_in(text):
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("epoch")]


said = terminal("launch", "--cpu", "--num_processes", "2", "train.py")
print(said)
same = losses_in(said) == losses_in(run.logs(0))
print(compare(guess, "a" if same else "b"))
assert same and len(losses_in(said)) == 3, "The same loop, the same seed, the same losses."

# %% [markdown]
# The live panel becomes a line in a terminal. Everything else is as before: under `torchrun
# --nproc_per_node 2 train.py`, `srun` or `mpirun` the same file works too, for `Accelerator()` reads
# whatever rank it is given.
#
# ## 4. What would be started?

# %%
print(terminal("launch", "--cpu", "--num_processes", "2", "--dry_run", "train.py"))

# %% [markdown]
# ## 5. Settings in a file
#
# `notebook-accel config` asks questions and writes a file. `config default` writes one without questions.
# Notebook and terminal read the same file, and Accelerate's files as well.

# %%
settings = folder / "two.yaml"
settings.write_text("num_processes: 2\ndevice: cpu\nmixed_precision: bf16\n")
print(terminal("config", "show", "--config_file", "two.yaml"))

# %%
from_file = notebook_launcher(main, config=settings)
assert len(from_file) == 2, "num_processes came from the file."

# %% [markdown]
# ## 6. Which one wins?
#
# Four places can say something, and the nearest wins: **argument > environment > file > default**.
#
# **Predict before you run.** The file says bf16, the environment says fp16, the call says no. Which
# precision does the worker see? And which one without the argument of the call?

# %%
with_argument, without_argument = None, None  # write "no", "fp16" or "bf16"


# %%
def precision():
    return Accelerator().mixed_precision


os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
try:
    by_call = notebook_launcher(precision, config=settings, mixed_precision="no")[0]
    by_environment = notebook_launcher(precision, config=settings)[0]
finally:
    del os.environ["ACCELERATE_MIXED_PRECISION"]
by_file = notebook_launcher(precision, config=settings)[0]

print("with the argument:   ", compare(with_argument, by_call))
print("without the argument:", compare(without_argument, by_environment))
assert (by_call, by_environment, by_file) == ("no", "fp16", "bf16")

# %% [markdown]
# ## 7. Two mistakes worth making
#
# A function that uses an *object* of the notebook has no source to write down. The export names it.

# %%
data = make_data()


def uses_an_object():
    Accelerator()
    return len(data)


try:
    notebook_launcher(uses_an_object, num_processes=1, device="cpu").export_script(folder / "no.py")
except ValueError as error:
    print(error)
    assert "data" in str(error)

# %% [markdown]
# An option that does not exist:

# %%
said = terminal("launch", "--num_procesess", "2", "train.py")
print(said)
assert "num_processes" in said.replace("-", "_"), "It proposes the nearest."

# %% [markdown]
# ## 8. The two curves
#
# Here are the losses that notebook and terminal printed.

# %%
import matplotlib.pyplot as plt

again = terminal("launch", "--cpu", "--num_processes", "2", "train.py")
plt.figure(figsize=(7, 2.4))
here, there = ([float(loss) for loss in losses_in(text)] for text in (run.logs(0), again))
plt.plot(here, color="#1763a6", linewidth=6, alpha=0.4, label="notebook")
plt.plot(there, color="#b04a00", linestyle="dashed", marker="o", label="terminal")
plt.xticks([0, 1, 2])
plt.xlabel("epoch")
plt.ylabel("loss")
plt.title("Notebook or terminal: the same run")
plt.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# **1.** Which command starts `train.py` on four processes of this machine's CPU, in bf16? Write the words
# after `notebook-accel` as a list, the script last.

# %%
words = None  # for example ["launch", "--num_processes", "2", "train.py"]


# %%
def check_words(words):
    if words is None:
        return "Not answered yet."
    said = terminal(*words[:-1], "--dry_run", words[-1])
    if "4 CPU processes" in said and "bf16" in said:
        return "Yes: 4 CPU processes, in bf16."
    return f"Not right: in place of 4 CPU processes in bf16 these words give\n{said}"


print(check_words(words))

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
words = ["launch", "--cpu", "--num_processes", "4", "--mixed_precision", "bf16", "train.py"]
said = check_words(words)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# **2.** The exported script takes no options. How can you train with another learning rate? a. edit the
# call at its end · b. `launch --lr 0.1 train.py` · c. `launch train.py --lr 0.1`, and argparse in the
# script. Several may be right.

# %%
answer = None  # write all that are right, like "a" or "b and c"

# %%
import re


def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


before_the_name = terminal("launch", "--dry_run", "--lr", "0.1", "train.py")
after_the_name = terminal("launch", "--dry_run", "--cpu", "train.py", "--lr", "0.1")
works = {
    "a": lines[-3].endswith(" = main()"),
    "b": "unknown option" not in before_the_name,
    "c": "unknown option" not in after_the_name,
}
right = [letter for letter, is_right in works.items() if is_right]
check(answer and sorted(re.findall(r"\b[abc]\b", answer)), right)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
# What stands before the script's name is for launch, what follows it is the script's.
answer = ["a", "c"]
assert answer == right
print(before_the_name)

# %% [markdown]
# ## Remember
#
# - A function that makes or imports what it needs can become a script: `run.export_script("train.py")`.
# - `notebook-accel launch --num_processes 2 train.py`; `--dry_run` only tells.
# - Argument > environment > file > default; `notebook-accel config show` says what came from where.
#
# ## What next
#
# - [All commands](../../docs/cli.md) and [all settings](../../docs/settings.md)
# - [How forks, pipes and the pump work](../3_researcher/11_processes.ipynb), for researchers
