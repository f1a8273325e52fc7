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
# # A worker fails or hangs: find out why
#
# **What you will see.** How each kind of failure is reported, how to see what a hanging run does, how to
# put a breakpoint into a worker, and how to get back what a failed run had learned.
#
# **You need** [one loop for any hardware](01_one_loop.ipynb). About 12 minutes to read, 35 seconds to run.

# %% [markdown]
# ## 1. Four ways to fail
#
# | what happens on one rank | what the cell raises |
# | --- | --- |
# | an exception | the exception itself, of the rank that had it first |
# | the process is gone (killed, crashed in C++) | `WorkerDied`, with the signal |
# | it waits for ranks that never come | `RanksStuck`, who waits where |
# | it goes on for too long | `RunTimeout`, if you gave `timeout_s` |
#
# In each case all other ranks are ended, seconds later, and nothing is left behind: no process, no port,
# no memory on the GPU. The kernel goes on.

# %%
import os
import signal
import time

import matplotlib.pyplot as plt
import torch
from IPython import get_ipython
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import (
    Accelerator,
    RanksStuck,
    RunTimeout,
    WorkerDied,
    notebook_launcher,
    runs,
)

data = TensorDataset(torch.rand(512, 16), torch.rand(512, 1))
earlier = {run.id for run in runs.list()}  # what is on record from before this notebook


def train(break_it=lambda accelerator, step: None):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (given, wanted) in enumerate(loader, start=1):
        optimizer.zero_grad()
        accelerator.backward((model(given) - wanted).square().mean())
        optimizer.step()
        break_it(accelerator, step)
    return model


# %% [markdown]
# ## 2. An exception on one rank
#
# Rank 1 fails at step 10. Rank 0 is inside a collective at that moment and will see a broken connection.
#
# **Predict before you run.** Which exception arrives? a. rank 0's connection error, because rank 0 counts ·
# b. the `KeyError` of rank 1 · c. a list of both

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


def lookup_fails(accelerator, step):
    if accelerator.process_index == 1 and step == 10:
        {}["learning rate"]


try:
    notebook_launcher(train, args=(lookup_fails,), num_processes=2, device="auto-or-cpu")
except Exception as error:
    get_ipython().showtraceback()  # as the cell would show it
    print(compare(guess, "b" if type(error) is KeyError else "a"))
    assert type(error) is KeyError, "except KeyError works, also across processes."

# %% [markdown]
# The blamed rank is the first whose failure is not another one's broken connection. The frames are yours
# only; `NOTEBOOK_ACCEL_TRACE=1` in the environment shows all of them.
#
# ## 3. A process that is gone


# %%
def killed(accelerator, step):
    if accelerator.process_index == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)


try:
    notebook_launcher(train, args=(killed,), num_processes=2, device="auto-or-cpu")
except WorkerDied as error:
    print(error)
    assert error.rank == 1 and error.exit_code == -signal.SIGKILL

# %% [markdown]
# SIGKILL out of nowhere is most often the system, which ran out of memory. SIGSEGV is native code; then
# the Python stack of that moment is in the rank's output. A rank's output is kept: `run.logs(1)`, or
# `runs.last().logs(1)` after an error.
#
# ## 4. Ranks in different places
#
# Rank 1 leaves the loop one step early. That happens with `break` on a rank's own loss, with `continue` for
# a bad batch, with data of unequal length.


# %%
def leaves_early():
    accelerator = Accelerator()
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (given, wanted) in enumerate(loader, start=1):
        loss = (model(given) - wanted).square().mean()
        if accelerator.process_index == 1 and step == 3:
            break
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.wait_for_everyone()


try:
    notebook_launcher(leaves_early, num_processes=2, device="auto-or-cpu")
except RanksStuck as error:
    print(error)
    assert "backward" in str(error) and "wait_for_everyone" in str(error)

# %% [markdown]
# It is proven, not guessed: every rank sleeps in a collective, no two of them in the same one, and nothing
# has moved for three seconds. A rank that is only slow computes, and is waited for.
#
# The cure: decide together. A flag set by one rank is seen by all at the next check:
#
# ```python
# if loss < 0.01:
#     accelerator.set_trigger()
# if accelerator.check_trigger():  # the same answer on every rank
#     break
# ```
#
# ## 5. Too long, and where
#
# Sometimes ranks are not stuck, only endless: a retry loop, a download that never ends. `timeout_s` ends a
# run and says where each rank was.


# %%
def waits_for_a_file(accelerator, step):
    while step == 5 and not os.path.exists("never"):
        time.sleep(0.1)


try:
    notebook_launcher(
        train, args=(waits_for_a_file,), num_processes=2, device="auto-or-cpu", timeout_s=6
    )
except RunTimeout as error:
    print(error)
    assert "rank 0 " in str(error) and "rank 1 " in str(error), "It says where each rank was."
    timed_out = error

# %% [markdown]
# (The time counts from the start of the launch. Where starting workers alone takes that long, it says
# that they were starting.) What was learned until then is not lost: a `LaunchError` carries `.result`,
# with curves and output, and the run is on record.

# %%
record = runs.get(timed_out)  # runs.last() in a later cell, or tomorrow
losses = record.history.get("loss", [])
print(record.ended, "after", len(losses), "updates")
assert losses == timed_out.result.history.get("loss", []), "The error has the same curve."

# %% [markdown]
# ## 6. Look while it runs
#
# With `block=False` the cell returns at once, and you have a handle: `handle.history`, `handle.logs(1)`,
# `handle.show()`, `handle.stop()`.


# %%
def slow(accelerator, step):
    time.sleep(0.05 * (1 + accelerator.process_index))


handle = notebook_launcher(train, args=(slow,), num_processes=2, device="auto-or-cpu", block=False)
for _ in range(600):  # a minute at most
    if handle.done or len(handle.history.get("loss", [])) >= 5:
        break
    time.sleep(0.1)
print("so far:", len(handle.history["loss"]), "updates")
handle.kill()
try:
    handle.wait()
except KeyboardInterrupt as stopped:  # RunInterrupted is one
    print(type(stopped).__name__)

# %% [markdown]
# ## 7. A breakpoint in a worker
#
# A worker has no keyboard. `start_method="inline"` runs one rank *in the kernel*: `breakpoint()`, the
# debugger of the page, and `%debug` work there. Find the mistake with one rank, then go back to many.


# %%
def inspect():
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(16, 1))
    # breakpoint()  # take the # away, and the cell stops here
    return os.getpid(), type(model).__name__


pid, kind = notebook_launcher(inspect, num_processes=1, device="cpu", start_method="inline")[0]
assert pid == os.getpid(), "It ran in the kernel itself."
print(f"{kind} in process {pid}, which is the kernel")

# %% [markdown]
# ## 8. Ask the toolkit about this computer
#
# `doctor()` looks for what stands in the way of a launch: an opened GPU, ports, memory, versions. It starts
# two ranks to see whether they meet.

# %%
from notebook_accel import doctor

doctor()

# %% [markdown]
# ## 9. When a run dies at night
#
# `max_restarts=2` starts all ranks again after a failure. Together with a checkpoint the run goes on by
# itself. This one fails at the first attempt, and tells by `TORCHELASTIC_RESTART_COUNT` which one it is.


# %%
def flaky():
    accelerator = Accelerator()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0 and accelerator.process_index == 1:
        raise OSError("the disk is away")
    return attempt


recovered = notebook_launcher(flaky, num_processes=2, device="auto-or-cpu", max_restarts=2)
assert list(recovered) == [1, 1], "The second attempt went through."

# %% [markdown]
# How did the runs of this notebook end? All of them are on record.

# %%
ends = [run.ended for run in runs.list() if run.id not in earlier]
counts = {ended: ends.count(ended) for ended in sorted(set(ends))}
plt.figure(figsize=(7, 1.6))
plt.barh(list(counts), list(counts.values()), color="#1763a6")
plt.title(f"{len(ends)} runs, one kernel, no restart")
plt.xlabel("number of runs")
plt.show()

# %% [markdown]
# ## Exercises
#
# **1.** Repair `leaves_early`: rank 1 wants to stop at step 3, and all stop there. Use `set_trigger` and
# `check_trigger`, and return the step at which the rank stopped.


# %%
def leaves_together():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(data, batch_size=64))
    for step, _ in enumerate(loader, start=1):
        if accelerator.process_index == 1 and step == 3:
            ...  # rank 1 wants to stop: say so to all
        ...  # does any rank want to stop? Then return `step`


# %%
def check_leaving(function):
    steps = list(notebook_launcher(function, num_processes=2, device="auto-or-cpu"))
    if steps == [None, None]:
        return "Not answered yet."
    if steps == [3, 3]:
        return "Yes: both ranks stopped at step 3."
    return f"Not right: the ranks returned {steps} in place of [3, 3]."


print(check_leaving(leaves_together))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def leaves_together():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(data, batch_size=64))
    for step, _ in enumerate(loader, start=1):
        if accelerator.process_index == 1 and step == 3:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            return step
    return None  # nobody wanted to stop


said = check_leaving(leaves_together)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# **2.** Which exception ends the cell in each case? Write `"KeyError"`, `"WorkerDied"`, `"RanksStuck"` or
# `"RunTimeout"`: (i) rank 0 calls `sys.exit(3)`, (ii) rank 1 sits in `while True: pass`, with
# `timeout_s=60`.

# %%
first, second = None, None  # write two names


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


def exits():
    if Accelerator().process_index == 0:
        raise SystemExit(3)


def endless():
    if Accelerator().process_index == 1:
        while True:
            pass


ended = []
for function, limit_s in ((exits, 60), (endless, 3)):
    try:
        notebook_launcher(function, num_processes=2, device="auto-or-cpu", timeout_s=limit_s)
    except Exception as error:
        ended.append(type(error).__name__)
print("(i) ", end="")
check(first, ended[0])
print("(ii) ", end="")
check(second, ended[1])

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
first, second = "WorkerDied", "RunTimeout"  # one left without returning, one is busy and no proof
assert [first, second] == ended

# %% [markdown]
# ## Remember
#
# - The exception you catch is the one that happened first, with its own type.
# - Different places: decide together (`set_trigger`, `check_trigger`, `gather`).
# - `block=False` to look, `timeout_s` to end, `start_method="inline"` for a debugger.
# - Output and curves survive: `error.result`, `runs.last()`.
#
# ## What next
#
# - [From the notebook to a script](07_scripts.ipynb), and back
# - [How forks, pipes and the pump work](../3_researcher/11_processes.ipynb), for researchers
# - [Questions that others asked](../../docs/faq.md)
