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
# # All-reduce by hand: a naive one, and a ring that moves 2P numbers whatever N is
#
# **What you will see.** Two ways to give N ranks the sum of their vectors, the number of bytes
# that each rank sends, and why the ring's does not grow with N.
#
# **You need** [data parallelism by hand](02_data_parallel_by_hand.ipynb). About 15 minutes to
# read, half a minute to run. Three and four ranks are used, on the CPU: with two ranks a ring is
# only an exchange.

# %% [markdown]
# ## 1. The naive way
#
# Every rank sends its vector of $P$ numbers to every other rank, and adds what it gets. A rank
# sends $(N-1)P$ numbers. `send` and `recv` are the only operations used in this lesson, and a
# small counter stands in front of them.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

from notebook_accel import Accelerator, notebook_launcher


class Line:
    """Sends to and receives from other ranks, and counts the numbers sent."""

    def __init__(self):
        self.num_sent = 0

    def exchange(self, tensor, to, source):
        """Send ``tensor`` to rank ``to`` while receiving one of its shape from ``source``."""
        received = torch.empty_like(tensor)
        work = dist.isend(tensor.contiguous(), to)
        dist.recv(received, source)
        work.wait()
        self.num_sent += tensor.numel()
        return received


# %%
def naive(vector, line):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = vector.clone()
    for distance in range(1, size):
        total += line.exchange(vector, (rank + distance) % size, (rank - distance) % size)
    return total


def measured(all_reduce, num=1200):
    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    vector, line = torch.randn(num), Line()
    truth = vector.clone()
    dist.all_reduce(truth)
    torch.testing.assert_close(all_reduce(vector, line), truth)
    return line.num_sent


for size in (2, 3, 4):
    sent = notebook_launcher(measured, (naive,), num_processes=size, device="cpu")[0]
    print(f"N = {size}: a rank sends {sent} numbers, P = 1200")
    assert sent == (size - 1) * 1200

# %% [markdown]
# ## 2. The ring
#
# Cut the vector into $N$ chunks. Each rank only ever sends to its right neighbor.
#
# 1. **Reduce-scatter**, $N-1$ rounds: in round $k$ rank $r$ passes chunk $r-k$ on, and adds the
#    chunk that comes in. After the last round rank $r$ owns the finished sum of chunk $r+1$.
# 2. **All-gather**, $N-1$ rounds: the finished chunks go round once more, copied and not added.
#
# Each round moves $P/N$ numbers, so a rank sends $2(N-1)\frac{P}{N} < 2P$ numbers (Patarasuk and
# Yuan 2009; it is optimal).


# %%
def reduce_scatter(chunks, line):
    """After it, ``chunks[(rank + 1) % size]`` is the sum over all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for k in range(size - 1):
        mine, theirs = (rank - k) % size, (rank - k - 1) % size
        chunks[theirs] += line.exchange(chunks[mine], (rank + 1) % size, (rank - 1) % size)


def all_gather(chunks, line):
    """Give every rank all chunks, each from the rank that owns its sum."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for k in range(size - 1):
        mine, theirs = (rank + 1 - k) % size, (rank - k) % size
        chunks[theirs] = line.exchange(chunks[mine], (rank + 1) % size, (rank - 1) % size)


def ring(vector, line):
    chunks = list(vector.clone().chunk(dist.get_world_size()))
    reduce_scatter(chunks, line)
    all_gather(chunks, line)
    return torch.cat(chunks)


# %% [markdown]
# **Predict before you run.** With four ranks, how many of P = 1200 numbers does a rank send? a.
# 3600, as before · b. 2400 · c. 1800


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


guess = None  # write "a", "b" or "c"

# %%
sent = {
    size: notebook_launcher(measured, (ring,), num_processes=size, device="cpu")[0]
    for size in (2, 3, 4)
}
print(compare(guess, {3600: "a", 2400: "b", 1800: "c"}[sent[4]]))
for size, num in sent.items():
    assert num == 2 * (size - 1) * 1200 // size, "2 (N - 1) P / N"

# %% [markdown]
# Three rounds of 300 numbers, twice. And with a thousand ranks it would be 2398.

# %%
sizes = range(2, 65)
figure, plot = plt.subplots(figsize=(7, 2.8))
plot.plot(sizes, [n - 1 for n in sizes], "--", color="#b04a00", label="naive: N - 1")
plot.plot(sizes, [2 * (n - 1) / n for n in sizes], color="#1763a6", label="ring: 2 (N - 1) / N")
plot.plot(sent.keys(), [s / 1200 for s in sent.values()], "o", color="#1763a6", label="measured")
plot.set(
    title="A ring never sends more than twice the vector",
    xlabel="ranks N",
    ylabel="numbers sent, in P",
    yscale="log",
)
plot.legend()
plt.show()

# %% [markdown]
# ## 3. What the ring costs instead
#
# Bytes are not everything. A round also has a fixed cost $\alpha$ (the **latency**), and the
# ring has $2(N-1)$ rounds, one after the other:
#
# $$T_\text{ring} = 2(N-1)\,\alpha + 2\,\frac{N-1}{N}\,P\,\beta ,$$
#
# where $\beta$ is the time per number. For small vectors the first term rules, and trees with
# $O(\log N)$ rounds win. That is one more reason for buckets: few large collectives rather than
# many small ones.

# %%
alpha, beta = 10e-6, 4 / 10e9  # 10 microseconds a round; 4 bytes a number at 10 GB/s
for P in (1e3, 1e6, 1e9):
    for N in (8, 1024):
        latency, bandwidth = 2 * (N - 1) * alpha, 2 * (N - 1) / N * P * beta
        print(f"P = {P:.0e}, N = {N:4}: rounds {latency * 1e3:7.2f} ms, ", end="")
        print(f"bytes {bandwidth * 1e3:8.3f} ms")

# %% [markdown]
# ## 4. A mistake: everybody receives first
#
# `recv` waits for a message. If every rank receives before it sends, nobody ever sends. A
# collective that cannot end is recognized by itself; a pair of `send` and `recv` is not, for a
# message may still be on its way. So the wait needs a limit. `irecv` begins to receive, and its
# `wait` takes one.

# %%
from datetime import timedelta

from IPython import get_ipython


def everybody_receives_first():
    accelerator = Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    got = torch.empty(4)
    dist.irecv(got, (rank - 1) % size).wait(timedelta(seconds=2))
    dist.send(torch.ones(4), (rank + 1) % size)
    return got


try:
    notebook_launcher(everybody_receives_first, num_processes=2, device="cpu")
    everybody_got_it = True
except RuntimeError:
    everybody_got_it = False
    get_ipython().showtraceback()
assert not everybody_got_it, "Nobody sends before it has received."

# %% [markdown]
# The error names the line at which the rank stood. A whole launch has a limit too:
# `notebook_launcher(..., timeout_s=60)` ends it after a minute, and says where every rank was.

# %% [markdown]
# ## Exercises
#
# **1.** A rank of a ring over 8 ranks averages a gradient of 1 GB. How many GB does it send, to two
# decimals?

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


check(answer, round(2 * (8 - 1) / 8 * 1, 2))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def sends(size, vector):
    """What a rank sends: a chunk in each round, N - 1 rounds of each of the two kinds."""
    chunk, rounds = vector / size, 2 * (size - 1)
    return rounds * chunk


print(f"{sends(8, 1)} GB")
assert all(sends(size, 1200) == num for size, num in sent.items()), "As measured above."
assert sends(8, 1) == 2 * (8 - 1) / 8, "14 rounds of an eighth."

# %% [markdown]
# **2.** Only `reduce_scatter` and an update of the owned chunk, then `all_gather` of the
# *weights*: that is ZeRO. How many numbers does it send, next to all-reduce? Measure the two
# halves.


# %%
def halves():
    """Give the numbers sent by reduce_scatter and by all_gather, for P = 1200."""
    ...


# %%
def check_halves(function):
    """Run it on four ranks; together the halves are the ring's all-reduce."""
    found = notebook_launcher(function, num_processes=4, device="cpu")[0]
    if found is None:
        return "Not answered yet."
    if len(found) == 2 and found[0] == found[1] == sent[4] / 2:
        return f"Yes: {found[0]} and {found[1]}, together what all-reduce sends."
    return f"Not {found}: four ranks with P = 1200 send two equal halves of {sent[4]}."


print(check_halves(halves))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def halves_solution():
    Accelerator()
    chunks, line = list(torch.ones(1200).chunk(dist.get_world_size())), Line()
    reduce_scatter(chunks, line)
    first = line.num_sent
    all_gather(chunks, line)
    return first, line.num_sent - first


assert check_halves(halves_solution).startswith("Yes")
first, second = notebook_launcher(halves_solution, num_processes=4, device="cpu")[0]
assert first == second == 900, "Each half sends (N - 1) P / N: together what all-reduce sends."

# %% [markdown]
# ## Remember
#
# - All-reduce is reduce-scatter, then all-gather.
# - A ring sends $2\frac{N-1}{N}P$ numbers a rank, in $2(N-1)$ rounds.
# - Large vectors are ruled by bytes, small ones by rounds.
#
# ## What next
#
# - [When not to average: no_sync and its cost](04_no_sync.ipynb)
# - [Sharding from the two halves of the ring](07_sharding.ipynb)
