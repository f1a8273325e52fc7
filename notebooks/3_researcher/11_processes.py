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
# # Processes by hand: a fork, a pipe, and the loop that reads them
#
# **What you will see.** A launcher in forty lines: workers forked around a function from a cell,
# their output and results in pipes, one loop that hears all of them, and the three mistakes that
# make such launchers hang.
#
# **You need** plain Python. About 15 minutes to read, half a minute to run. Linux or macOS; no
# torch is needed before the last section.

# %% [markdown]
# ## 1. Fork
#
# `os.fork()` makes a copy of this process. Both go on at the same line; in the child it returns
# 0, in the parent the child's number. The child has every variable and function of the notebook,
# also those that could not be pickled: that is why a launch can take a function from a cell.
# Memory is shared until somebody writes to it ("copy on write").

# %%
import os
import pickle
import select
import signal
import subprocess
import sys
import time

state = {"lesson": 11}


def child_changes_it():
    pid = os.fork()
    if pid == 0:
        state["lesson"] = 12  # in the child's copy
        os._exit(0)  # leave at once: the rest of the notebook is the parent's business
    os.waitpid(pid, 0)


# %% [markdown]
# **Predict before you run.** What is `state["lesson"]` here, afterwards? a. 11 · b. 12


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a" or "b"

# %%
child_changes_it()
print(compare(guess, {11: "a", 12: "b"}[state["lesson"]]))
assert state["lesson"] == 11, "What a worker changes, it changes in its copy."

# %% [markdown]
# ## 2. A pipe
#
# `os.pipe()` gives two descriptors: what is written to one can be read from the other, also by
# another process. It is the plainest way for a result to come back, for nothing of it has to lie on
# a disk. A pipe holds about 64 kB: who writes more waits until somebody reads.
#
# **First mistake**: to wait for the child's end, and read then. A child with a large result
# waits for a reader, and the parent waits for the child.


# %%
def run_and_read(function, read_first):
    """Call ``function`` in a child; give what it returned, or None if both wait for ever."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        with os.fdopen(theirs, "wb") as pipe:
            pickle.dump(function(), pipe)
        os._exit(0)
    os.close(theirs)  # or the end of the pipe would never be seen
    if not read_first:
        deadline = time.monotonic() + 5
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(ours)
                return None
            time.sleep(0.01)
    with os.fdopen(ours, "rb") as pipe:
        result = pickle.load(pipe)
    if read_first:
        os.waitpid(pid, 0)
    return result


came = {}
for size in (100, 1_000_000):
    for read_first in (False, True):
        result = run_and_read(lambda size=size: b"x" * size, read_first)
        came[size, read_first] = result is not None and len(result) == size
        order = "read, then wait" if read_first else "wait, then read"
        told = "all came" if came[size, read_first] else "nothing came, for five seconds"
        print(f"{size:9,} bytes, {order}: {told}")
assert came[1_000_000, True], "A reader empties the pipe, so the child can end."
assert not came[1_000_000, False], "Each waits for the other."

# %% [markdown]
# ## 3. Many workers, one loop
#
# With N workers there are N pipes of results and N of output, and any of them may speak first.
# `select` waits for whichever does. One loop reads all of them and notices every end: the
# **pump**.
#
# **Second mistake**: a thread or a blocking read for each pipe. **Third mistake**: an end that
# is only noticed when the pipe closes: a grandchild may hold it open for ever.


# %%
def worker(function, rank, output, result):
    os.setpgid(0, 0)  # a group of its own: the interrupt button is not for it
    os.dup2(output, 1)  # whatever prints, C code too, writes into the pipe
    code = 1
    try:
        value = ("returned", function(rank))
        code = 0
    except BaseException as error:
        value = ("raised", error)
    with os.fdopen(result, "wb") as pipe:
        pickle.dump(value, pipe)
    os._exit(code)


# %%
def launch(function, num):
    """Call ``function(rank)`` in ``num`` forked workers; give what each returned."""
    pids, pipes, texts = {}, {}, {}
    for rank in range(num):
        (out, their_out), (res, their_res) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            worker(function, rank, their_out, their_res)
        os.close(their_out)
        os.close(their_res)
        pids[rank], texts[rank] = pid, {out: b"", res: b""}
        pipes.update({out: rank, res: rank})
    while pipes:
        for fd in select.select(list(pipes), [], [], 1.0)[0]:
            data = os.read(fd, 65536)
            texts[pipes[fd]][fd] += data
            if not data:  # this end is closed on the other side
                os.close(fd)
                del pipes[fd]
    results = []
    for rank, (out, res) in texts.items():
        os.waitpid(pids[rank], 0)
        for line in texts[rank][out].decode().splitlines():
            print(f"[{rank}] {line}")
        kind, value = pickle.loads(texts[rank][res])
        if kind == "raised":
            raise value
        results.append(value)
    return results


# %% [markdown]
# A function of this notebook, printing from the C level of the process, with a result too large
# for a pipe:


# %%
def job(rank):
    os.write(1, f"I am process {os.getpid()}\n".encode())
    return [rank] * 200_000


results = launch(job, 3)
print([(result[0], len(result)) for result in results])
assert [result[0] for result in results] == [0, 1, 2], "In rank order, whoever was first."

# %% [markdown]
# And an exception arrives as itself:


# %%
class Broken(Exception):
    pass


def breaks(rank):
    if rank == 1:
        raise Broken("rank 1 dropped it")


try:
    launch(breaks, 2)
except Broken as error:
    print("caught:", error)

# %% [markdown]
# ## 4. What is missing
#
# | Danger | What the toolkit does |
# | --- | --- |
# | CUDA was used before the fork: a child cannot use it | a clean process ("forkserver") is started instead, and says why |
# | OpenMP had threads: the child waits for threads that do not exist | its pools are put to rest before the fork |
# | the kernel is killed: workers go on for ever | a guard process kills their groups |
# | a child inherits the kernel's sockets: a restart finds its ports taken | they are pointed at nothing |
# | one rank stops: the others wait in a collective | all stop at the same step, on a flag in shared memory |
# | results of gigabytes through a pipe of 64 kB | a file in memory, made before the start |
#
# All of this is done at each launch. How long does one take, compared with ours?

# %%
import matplotlib.pyplot as plt

from notebook_accel import notebook_launcher

notebook_launcher(lambda: 0, num_processes=2, device="cpu")  # the first one imports torch's parts
took = {}
for name, call in {
    "forty lines": lambda: launch(lambda rank: rank, 2),
    "notebook_launcher": lambda: notebook_launcher(lambda: 0, num_processes=2, device="cpu"),
}.items():
    began = time.perf_counter()
    call()
    took[name] = time.perf_counter() - began

figure, plot = plt.subplots(figsize=(7, 1.8))
plot.barh(list(took), [1000 * t for t in took.values()], color=["#b04a00", "#1763a6"])
plot.set(title="What starting, watching and cleaning up two workers takes", xlabel="milliseconds")
plt.show()

# %% [markdown]
# ## Exercises
#
# **1.** The child of `os.fork()` in a notebook ends with `os._exit(0)`, not with `sys.exit(0)`.
# Why? a. `sys.exit` would end the parent as well · b. `sys.exit` would run what this process is to
# do at its own end, a second time

# %%
answer = None  # write "a" or "b"


# %%
def check(answer, truth):
    """Say whether an answer is right; say nothing of the truth before it is."""
    if answer is None:
        print("Not answered yet.")
    elif answer == truth:
        print(f"Yes: {answer}.")
    else:
        print(f"Not {answer}: try again, or open the solution.")


def after(leave):
    """What a program writes at its ends, whose child leaves by ``leave``; plain Python."""
    program = f"""
import atexit, os, sys
atexit.register(print, "saving")
if os.fork() == 0:
    {leave}
os.wait()
print("the parent goes on")
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split("\n")


written = after("sys.exit(0)")
check(answer, "a" if "the parent goes on" not in written else "b")

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = "b"
times = {leave: after(leave).count("saving") for leave in ("sys.exit(0)", "os._exit(0)")}
print(answer, times)
assert times == {"sys.exit(0)": 2, "os._exit(0)": 1}, "Only os._exit leaves that to the parent."
assert "the parent goes on" in written, "A child's exit is its own."

# %% [markdown]
# **2.** Write `first_answer(functions)`, which runs all functions in children at once and gives
# the result of whichever is first.


# %%
def first_answer(functions):
    """Give the result that comes first; end the other children."""
    ...


# %%
def check_first(function):
    """Give it one child that answers at once, before and behind one that sleeps for a minute."""

    def slow():
        time.sleep(60)
        return "slow"

    def fast():
        return "fast"

    for functions in ([slow, fast], [fast, slow]):
        found = function(functions)
        if found is None:
            return "Not answered yet."
        if found != "fast":
            names = ", ".join(one.__name__ for one in functions)
            return f"Not right: first_answer([{names}]) gave {found!r} in place of 'fast'."
    return "Yes: whoever is first, in whichever place."


print(check_first(first_answer))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def first_answer_solution(functions):
    children = {}
    for function in functions:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(theirs, pickle.dumps(function()))
            os._exit(0)
        os.close(theirs)
        children[ours] = pid
    fd = select.select(list(children), [], [], 30.0)[0][0]
    answer = pickle.loads(os.read(fd, 65536))
    for fd, pid in children.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)
    return answer


assert check_first(first_answer_solution).startswith("Yes")

# %% [markdown]
# ## Remember
#
# - A fork has everything, by copy. Only what is sent comes back.
# - Read while you wait: one loop for all pipes and all ends.
# - Starting a worker is easy. Ending one, in every case, is what a launcher is for.
#
# ## What next
#
# - [A scaling study](12_scaling_study.ipynb)
# - [How it works](../../docs/architecture.md)
