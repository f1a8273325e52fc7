"""Ranks that would wait for ever end within seconds, with who waits where; slow ones go on."""

from __future__ import annotations

import pytest

from tests.kernel.cells import said

RUNS = """
from notebook_accel import Accelerator

def trained(skip=None, end=None, norm=False, at_step=None):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) if norm else nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(16, 2), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for index, batch in enumerate(loader):
        if index == skip and accelerator.process_index == 1:
            continue
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().sum())
        optimizer.step()
        if index == at_step and accelerator.is_main_process:
            accelerator.gather(torch.ones(2))
    if end is not None:
        end(accelerator)
    return accelerator.process_index

def logged(form):
    accelerator = Accelerator()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(16, 2), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        accelerator.backward(loss)
        if accelerator.is_main_process:
            if form == "gather":
                accelerator.gather(loss)
            else:
                accelerator.wait_for_everyone()
        optimizer.step()

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if torch.distributed.get_rank() == 1 and self.calls == 1:
            time.sleep(4)
        self.calls += 1
        return self.layer(x)

def slow_forward():
    accelerator = Accelerator()
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(3):
        accelerator.backward(model(torch.ones(2, 2)).sum())
        optimizer.step()
    return accelerator.process_index

def meet_twice(accelerator):
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()
    accelerator.gather(torch.ones(3))

def main_only(accelerator):
    @accelerator.on_main_process
    def evaluate():
        accelerator.wait_for_everyone()
    evaluate()

def return_late(accelerator):
    if not accelerator.is_main_process:
        import atexit
        atexit.register(time.sleep, 5)
        return
    accelerator.wait_for_everyone()

def unequal(accelerator):
    accelerator.gather(torch.ones(2 + accelerator.process_index))

def very_unequal(accelerator):
    accelerator.gather(torch.ones(2000 + 10 * accelerator.process_index))

def slow_main(accelerator):
    if accelerator.is_main_process:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            torch.ones(100, 100).sum()
        time.sleep(4)
    accelerator.wait_for_everyone()
    with accelerator.main_process_first():
        time.sleep(0.1)
    accelerator.gather_for_metrics(["a"])

def raw(form, group=None):
    import torch.distributed as dist
    from torch.distributed import all_reduce as imported_early
    accelerator = Accelerator()
    rank = accelerator.process_index
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])] if group else None
    dist.all_reduce(torch.ones(2))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    if form == "one_rank" and rank == 0:
        imported_early(torch.ones(2))
    elif form == "returns" and rank == 0:
        dist.barrier()
    elif form == "async" and rank == 0:
        late = dist.all_reduce(torch.ones(2), async_op=True)
        late.wait()
    elif form == "recv" and rank == 0:
        dist.recv(torch.ones(2), src=1)
    elif form == "group":
        if rank == 0:
            dist.barrier(group=halves[0])
        elif rank > 1:
            dist.all_reduce(torch.ones(1), group=halves[1])
    elif form == "slow_groups":
        time.sleep(4 * (rank > 1))
        dist.all_reduce(torch.ones(1), group=halves[rank // 2])
    if form != "returns":
        dist.barrier()
    return rank

def fails_first(accelerator):
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            raise KeyError("in the main block")
"""


def trained(arguments, num_processes=2, method="auto"):
    return (
        f"functools.partial(trained, {arguments}), device='cpu', "
        f"num_processes={num_processes}, start_method={method!r}"
    )


def raw(form, more="", num_processes=2):
    return f"raw, ({form!r}{more},), device='cpu', num_processes={num_processes}"


def logged(form):
    return f"logged, ({form!r},), device='cpu', num_processes=2"


SLOW_FORWARD = "slow_forward, device='cpu', num_processes=2"
# Each takes seconds in which nothing happens: they do so together, before they are asked about.
AHEAD = [
    trained("at_step=1, norm=True", method="forkserver"),
    logged("gather"),
    logged("wait_for_everyone"),
    SLOW_FORWARD,
    trained("end=main_only"),
    trained("skip=1, end=lambda a: a.wait_for_everyone()"),
    trained("skip=1"),
    trained("end=meet_twice", 2),
    trained("end=meet_twice", 3),
    trained("end=return_late"),
    trained("end=very_unequal"),
    raw("async"),
    raw("recv"),
    raw("group", ", True", 4),
    raw("slow_groups", ", True", 4),
    trained("end=slow_main"),
]


@pytest.fixture(scope="module", autouse=True)
def functions(kernel):
    assert not kernel.run(RUNS).error
    kernel.run("begun = {}")
    for half in (AHEAD[::2], AHEAD[1::2]):
        launches = [f"begun[{one!r}] = notebook_launcher({one}, block=False)" for one in half]
        reply = kernel.run("\n".join(launches))
        assert not reply.error, said(reply)
        kernel.run("for one in begun.values():\n    while not one.done: time.sleep(0.01)", 120)


def run(kernel, words):
    """Give what a launch with ``words`` came to, now or in the background before."""
    return kernel.run(
        f"run = begun.get({words!r})\n"
        f"run = run.wait() if run is not None else notebook_launcher({words})\nprint(run.values)"
    )


def test_a_collective_on_the_main_process_only_ends_with_who_waits_where(kernel):
    """GM11, in a loop: the other rank goes on to its next backward, or to the next forward."""
    reply = run(kernel, trained("at_step=1"))
    assert reply.error == "RanksStuck"
    text = said(reply)
    assert "rank 0 in gather at Cell In[" in text
    assert ", rank 1 in backward at Cell In[" in text
    assert "take it out of `if accelerator.is_main_process`" in text
    assert "killed by" not in text


def test_a_rank_waits_for_buffers_in_its_forward(kernel):
    reply = run(kernel, trained("at_step=1, norm=True", method="forkserver"))
    assert reply.error == "RanksStuck"
    assert "rank 0 in gather at Cell" in said(reply)
    assert "rank 1 in forward at Cell" in said(reply), said(reply)


@pytest.mark.parametrize("form", ["gather", "wait_for_everyone"])
def test_a_collective_on_the_main_process_in_the_first_step_ends_too(kernel, form):
    """GM11: the other rank goes on to its second forward, where DDP rebuilds its buckets."""
    reply = run(kernel, logged(form))
    assert reply.error == "RanksStuck"
    assert f"rank 0 in {form} at Cell In[" in said(reply)
    assert ", rank 1 in forward at Cell In[" in said(reply)
    assert "where one rank leaves a loop early" in said(reply)


def test_a_rank_that_sleeps_in_its_own_forward_is_waited_for(kernel):
    reply = run(kernel, SLOW_FORWARD)
    assert not reply.error, said(reply)
    assert "[0, 1]" in reply.out


def test_a_main_process_function_that_calls_a_collective_is_explained(kernel):
    """GM11: the other rank goes on and ends."""
    reply = run(kernel, trained("end=main_only"))
    assert reply.error == "WorkerDied"
    assert "rank 1 returned early" in said(reply)
    assert "while rank 0 waited for it in wait_for_everyone at Cell In[" in said(reply)


def test_a_skipped_batch_is_explained_when_the_ranks_part(kernel):
    """DL17: with a collective after the loop, which may fit what rank 0 is in, and without."""
    reply = run(kernel, trained("skip=1, end=lambda a: a.wait_for_everyone()"))
    assert reply.error in ("RanksStuck", "WorkerDied")
    assert "backward so far, rank 0: 4, rank 1: 3" in said(reply)
    assert "let all ranks take the same number" in said(reply) or "returned early" in said(reply)
    reply = run(kernel, trained("skip=1"))
    assert reply.error == "WorkerDied"
    assert "while rank 0 waited for it in backward at Cell In[" in said(reply)


@pytest.mark.parametrize("num_processes", [2, 3])
def test_different_orders_are_explained(kernel, num_processes):
    reply = run(kernel, trained("end=meet_twice", num_processes))
    assert reply.error == "RanksStuck"
    text = said(reply)
    assert "rank 0 in wait_for_everyone at Cell In[" in text
    assert "rank 1 in gather at Cell In[" in text


def test_a_rank_that_returned_but_has_not_ended_yet_is_blamed(kernel):
    """NB16: the early rank's own exit functions keep its connections open."""
    reply = run(kernel, trained("end=return_late"))
    assert reply.error == "WorkerDied"
    assert "rank 1 returned early, after step 4, while rank 0 waited for it" in said(reply)


def test_tensors_of_different_sizes_are_explained(kernel):
    reply = run(kernel, trained("end=very_unequal"))
    assert reply.error == "RanksStuck"
    assert "rank 0 8016 bytes in gather at Cell In[" in said(reply)
    assert "pad_across_processes" in said(reply)
    reply = run(kernel, trained("end=unequal"))  # so alike that they would fit
    assert reply.error == "DistributedOperationException"
    assert "rank 0 [2] float32, rank 1 [3] float32" in said(reply)


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("one_rank", "rank 0 in all_reduce at Cell In["),
        ("async", "rank 0 in all_reduce at Cell In["),
        ("recv", "rank 0 in recv at Cell In["),
    ],
)
def test_a_collective_of_torchs_own_on_one_rank_ends_with_who_waits_where(kernel, form, where):
    reply = run(kernel, raw(form))
    assert reply.error == "RanksStuck", said(reply)
    assert where in said(reply)
    assert ", rank 1 in barrier at Cell In[" in said(reply)


def test_a_rank_that_returned_before_torchs_own_barrier_is_named(kernel):
    reply = run(kernel, raw("returns"))
    assert reply.error == "WorkerDied", said(reply)
    assert "rank 1 returned early" in said(reply)
    assert "while rank 0 waited for it in barrier at Cell In[" in said(reply)


def test_groups_of_some_ranks_are_told_apart(kernel):
    """Ranks 2 and 3 meet in their own group; 0 waits in the other group for 1."""
    reply = run(kernel, raw("group", ", True", 4))
    assert reply.error == "RanksStuck", said(reply)
    assert "rank 0 in barrier at Cell In[" in said(reply)
    reply = run(kernel, raw("slow_groups", ", True", 4))
    assert not reply.error, said(reply)
    assert "[0, 1, 2, 3]" in reply.out


def test_a_slow_rank_is_waited_for(kernel):
    reply = run(kernel, trained("end=slow_main"))
    assert not reply.error, said(reply)
    assert "[0, 1]" in reply.out


def test_an_exception_of_the_main_process_lets_the_others_go(kernel):
    """CT01: the other rank is not left in the barrier, and the user's own error arrives."""
    reply = run(kernel, trained("end=fails_first"))
    assert reply.error == "KeyError"
    assert "in the main block" in said(reply)
