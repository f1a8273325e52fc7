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
# # Count every sample once
#
# **What you will see.** Why an average of averages is wrong, how a metric becomes exact on any number of
# ranks, what to do with predictions of different lengths, and with losses that count words instead of
# samples.
#
# **You need** [one loop for any hardware](01_one_loop.ipynb). About 12 minutes to read, 20 seconds to run.

# %% [markdown]
# ## 1. Two ways to be wrong
#
# A test set of 100 samples, batches of 16, two ranks. That is 7 batches; the last one has 4 samples. Each
# rank must make the same number of steps, or one would wait for the other for ever. So the loader
# **pads**: it fills up with samples from the beginning.
#
# Our "model" is right on exactly the samples whose number is below 90. The true accuracy is 90 %. Three
# people compute it.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from notebook_accel import Accelerator, notebook_launcher

numbers = TensorDataset(torch.arange(100))


def three_people():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(numbers, batch_size=16))
    batch_means, plain, exact = [], [], []
    with torch.no_grad():
        for (number,) in loader:
            right = (number < 90).float()
            batch_means.append(right.mean().item())
            plain.append(accelerator.gather(right))
            exact.append(accelerator.gather_for_metrics(right))
    plain, exact = torch.cat(plain), torch.cat(exact)
    return {
        "mean of batch means, on this rank": sum(batch_means) / len(batch_means),
        "mean of what gather gives": plain.mean().item(),
        "mean of what gather_for_metrics gives": exact.mean().item(),
        "counted": (len(plain), len(exact)),
    }


# %% [markdown]
# **Predict before you run.** Is rank 0's mean of its own batch means a. below 90 % · b. 90 % · c. above?

# %%
guess = None  # write "a", "b" or "c"


# %%
def compare(guess, truth):
    """Say whether a guess is right; without one, only say what is."""
    if guess is None:
        return f"The answer is {truth}."
    return f"Yes, it is {truth}." if guess == truth else f"You said {guess}, it is {truth}. Why?"


run = notebook_launcher(three_people, num_processes=2, device="auto-or-cpu")
for rank, answers in enumerate(run):
    for how, value in answers.items():
        print(f"rank {rank}  {how}: {value if isinstance(value, tuple) else format(value, '.1%')}")

own = run[0]["mean of batch means, on this rank"]
print(compare(guess, "a" if own < 0.8999 else "c" if own > 0.9001 else "b"))

# %% [markdown]
# Rank 0 sees half of the data, and the small last batch weighs as much as a full one. `gather` sees
# everything and counts the padding. Only `gather_for_metrics` knows which samples are padding.

# %%
exact = [answers["mean of what gather_for_metrics gives"] for answers in run]
assert all(abs(one - 0.90) < 1e-6 for one in exact), "90 %, on both ranks."
assert run[0]["counted"][1] == 100, "Every sample once."

# %% [markdown]
# The rule: **gather results, then average.** Every rank calls `gather_for_metrics`, once a batch, in the
# loop. (It needs to know which batch the results belong to.)
#
# ## 2. Predictions of different lengths
#
# Sentences have different lengths, and tensors that are gathered must have the same. Fill them up with
# a number that cannot occur, gather, cut it off again. `pad_across_processes` fills up to the longest of
# all ranks.


# %%
class Sentences(Dataset):
    """Sentence i is i % 5 + 1 words long, and every word of it is i."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((i % 5 + 1,), i)


def fill_up(sentences):
    return nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=-1)


def collect():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Sentences(), batch_size=3, collate_fn=fill_up))
    collected = []
    for words in loader:
        same_width = accelerator.pad_across_processes(words, dim=1, pad_index=-1)
        for row in accelerator.gather_for_metrics(same_width):
            collected.append(row[row >= 0].tolist())
    return collected


collected = notebook_launcher(collect, num_processes=2, device="auto-or-cpu")[0]
assert collected == [[i] * (i % 5 + 1) for i in range(20)], "Twenty sentences, in order."
print(collected[:4])

# %% [markdown]
# Anything that is not a tensor (texts, dictionaries) travels as well: `gather_for_metrics(objects,
# use_gather_object=True)` pickles lists of objects. It is slower, and as exact.
#
# ## 3. Without padding
#
# `even_batches=False` leaves the padding out. Then ranks may have unequal numbers of batches, so
# nothing that all ranks must do together may stand in that loop, except at its end.

# %%
from notebook_accel import DataLoaderConfiguration


def sum_up(even_batches):
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=even_batches))
    loader = accelerator.prepare(DataLoader(numbers, batch_size=16))
    seen = torch.zeros((), device=accelerator.device)
    for (number,) in loader:
        seen += len(number)
    return int(seen), int(accelerator.reduce(seen, reduction="sum"))


for even in (True, False):
    done = notebook_launcher(sum_up, args=(even,), num_processes=2, device="auto-or-cpu")
    own, total = zip(*done, strict=True)
    print(f"even_batches={even}: {own[0]} and {own[1]} samples, {total[0]} together")

assert total == (100, 100), "Without padding the sum is exact, on both ranks."

# %% [markdown]
# ## 4. Losses that count words
#
# A language model's loss is a mean over *words*, and batches have different numbers of words. The mean
# of two ranks' means is not the mean over all words. `accelerator.normalize(loss_sum, count)` divides by
# the count of *all ranks*, and of all micro-batches of an accumulation window, so that a step is the
# step of one device.
#
# Here rank 0 has few words and rank 1 has many. One weight, one step of learning rate 1: the weight moves
# by the gradient, so we can read it off.

# %%
WORDS = [torch.tensor([1.0, 3.0]), torch.tensor([10.0, 10.0, 10.0, 10.0, 10.0, 10.0])]


class OneWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, words):
        return self.weight * words  # the gradient of its mean is the mean of the words


def one_step(by_words):
    accelerator = Accelerator()
    net = OneWeight()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(net, optimizer)
    mine = WORDS[accelerator.process_index % 2].to(accelerator.device)
    loss = model(mine)
    loss = accelerator.normalize(loss.sum(), len(mine)) if by_words else loss.mean()
    accelerator.backward(loss)
    optimizer.step()
    return -net.weight.item()


# %% [markdown]
# **Predict before you run.** The words are 1, 3 on rank 0 and 10 six times on rank 1. What is (i) the
# mean of the two ranks' means, (ii) the mean over all eight words?

# %%
mean_of_means, mean_of_words = None, None  # write two numbers

# %%
plain = notebook_launcher(one_step, args=(False,), num_processes=2, device="auto-or-cpu")[0]
by_words = notebook_launcher(one_step, args=(True,), num_processes=2, device="auto-or-cpu")[0]
print("(i) ", compare(mean_of_means, round(plain, 4)))
print("(ii)", compare(mean_of_words, round(by_words, 4)))

truth = torch.cat(WORDS).mean().item()
assert abs(by_words - truth) < 1e-5, "normalize takes the step that one device would take."
assert abs(plain - truth) > 0.1, "The mean of means does not."

# %%
figure, axes = plt.subplots(figsize=(7, 1.8))
names = ["mean of means", "normalize", "one device, all words"]
axes.barh(names, [plain, by_words, truth], color=["#b04a00", "#1763a6", "#57606a"])
axes.set_xlabel("gradient of the weight")
axes.set_title("Words are weighed equally only if they are counted together")
plt.show()

# %% [markdown]
# ## 5. A mistake worth making
#
# Collect predictions in the loop, gather them once at the end. It looks cheaper. But then nobody knows
# any more which of them were padding.


# %%
def too_late():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(numbers, batch_size=16))
    mine = []
    with torch.no_grad():
        for (number,) in loader:
            mine.append(number)
    return len(accelerator.gather_for_metrics(torch.cat(mine)))


late = notebook_launcher(too_late, num_processes=2, device="auto-or-cpu")
print(f"{late[0]} samples counted")
assert "GuardRail" in "".join(late.logs), "The toolkit says so."

# %% [markdown]
# ## Exercises
#
# **1.** 1,000 samples, batches of 32, four ranks, padding on. How many results does a plain `gather`
# collect in a pass?

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


def plain_count():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(torch.arange(1000), batch_size=32))
    return sum(len(accelerator.gather(batch)) for batch in loader)


plain = notebook_launcher(plain_count, num_processes=4, device="cpu")[0]
check(answer, plain)

# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
answer = 8 * 4 * 32  # 32 batches are 8 rounds of 4 ranks, and all of them are filled up
assert answer == plain
check(answer, plain)

# %% [markdown]
# **2.** Write `recall(accelerator, model, loader)`: of the samples whose label is 1, the share for which
# `model(x) > 0`; exact on any number of ranks. Mind the padding.


# %%
def recall(accelerator, model, loader):
    """Give a number from 0 to 1."""
    ...


# %%
values = torch.linspace(-1, 1, 101)
labels = (torch.arange(101) % 3 == 0).long()


def check_recall(function):
    def on_a_rank():
        accelerator = Accelerator()
        loader = DataLoader(TensorDataset(values, labels), batch_size=16)
        return function(accelerator, lambda x: x, accelerator.prepare(loader))

    truth = (values[labels == 1] > 0).float().mean().item()
    got = notebook_launcher(on_a_rank, num_processes=2, device="auto-or-cpu")[0]
    if got is None:
        return "Not answered yet."
    if abs(got - truth) < 1e-6:
        return f"Yes: {truth:.3f}."
    return f"Not right: the 101 samples on two ranks gave {got:.3f} in place of {truth:.3f}."


print(check_recall(recall))


# %% tags=["solution"] jupyter={"source_hidden": true, "outputs_hidden": true}
# Solution: click to open
def recall(accelerator, model, loader):
    hits = count = 0
    for x, label in loader:
        positive, label = accelerator.gather_for_metrics((model(x) > 0, label))
        hits += (positive & (label == 1)).sum().item()
        count += (label == 1).sum().item()
    return hits / count


said = check_recall(recall)
assert said.startswith("Yes"), said
print(said)

# %% [markdown]
# ## Remember
#
# - Gather results, then average; never average averages.
# - `gather_for_metrics`, in the loop, once a batch, on every rank.
# - `pad_across_processes` before gathering what differs in length.
# - Losses over words: `accelerator.normalize(loss.sum(), num_words)`.
#
# ## What next
#
# - [The effective batch](03_accumulation.ipynb): accumulation, and the learning rate that goes with it.
# - [Differences from Accelerate](../../docs/differences.md), where counting is concerned
