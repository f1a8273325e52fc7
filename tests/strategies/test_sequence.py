"""Sequences divided over ranks, beyond the agreement of their numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import (
    Accelerator,
    DataLoaderConfiguration,
    ParallelismConfig,
    SequenceParallel,
    notebook_launcher,
    whole_sequences,
)
from notebook_accel.config.sequence import (
    DeepSpeedSequenceParallelConfig,
    TorchContextParallelConfig,
)
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, TensorParallel
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.ranks.world import World
from notebook_accel.strategies.sequence_attention import gather_keys, ulysses
from tests.agreement.test_sequence_agrees import PLAN, Net, data, loss_of

NUM_ROWS, NUM_TOKENS, NUM_FEATURES = 3, 6, 4

# ── attention, by functions in a cell ─────────────────────────────────────────────────────────────


def attention_case(kind: str, exchange: Any, num_heads: int, num_key_heads: int) -> list[Tensor]:
    """Give what differs between full attention and its parts: the output, three gradients."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    shape = (NUM_ROWS, num_heads, NUM_TOKENS * size, NUM_FEATURES)
    q = torch.randn(shape, requires_grad=True)
    k, v = (torch.randn(*shape)[:, :num_key_heads].requires_grad_() for _ in range(2))
    real = torch.rand(NUM_ROWS, 1, 1, NUM_TOKENS * size) > 0.3
    real[..., 0] = True
    square = torch.rand(1, 1, *[NUM_TOKENS * size] * 2) > 0.3
    square[..., 0] = True
    whole: dict[str, Any] = {
        "plain": {},
        "causal": {"is_causal": True},
        "padding": {"attn_mask": real},
        "square": {"attn_mask": square},
        "bias of each head": {"attn_mask": torch.randn(1, num_heads, *square.shape[2:])},
        "scaled": {"scale": 0.1, "is_causal": True},
    }[kind]
    grouped = {"enable_gqa": True} if num_key_heads < num_heads else {}
    wanted = F.scaled_dot_product_attention(q, k, v, **whole, **grouped)
    wanted.square().sum().backward()
    parts = [one.detach().chunk(size, 2)[rank].clone().requires_grad_() for one in (q, k, v)]
    told = dict(whole)
    if kind == "padding":
        told["attn_mask"] = real.chunk(size, -1)[rank]  # as a model makes it of its own tokens
    found = exchange(*parts, dist.group.WORLD, **told, **grouped)
    found.square().sum().backward()
    pairs = [
        (wanted, found),
        *((one.grad, other.grad) for one, other in zip((q, k, v), parts, strict=True)),
    ]
    return [(one.chunk(size, 2)[rank] - other).abs().max().detach() for one, other in pairs]


CASES = [
    (kind, exchange, *heads)
    for kind in ("plain", "causal", "padding", "square", "bias of each head", "scaled")
    for exchange, heads in (
        (ulysses, (4, 4)),
        (ulysses, (4, 1)),  # fewer heads of keys than ranks
        (gather_keys, (3, 3)),
        (gather_keys, (4, 2)),
    )
]


def attends() -> list[tuple[Any, float]]:
    World.join(cpu=True)
    return [(case[:1] + case[2:], float(max(attention_case(*case)))) for case in CASES]


def test_attention_over_parts_is_attention_over_the_whole() -> None:
    for told in notebook_launcher(attends, (), 2, device="cpu", timeout_s=100):
        for case, odd in told:
            assert odd < 1e-5, case


def masks_twice() -> str:
    World.join(cpu=True)
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(RuntimeMisuse) as caught:
        gather_keys(q, q, q, dist.group.WORLD, attn_mask=torch.ones(8, 8).bool(), is_causal=True)
    return str(caught.value)


def test_a_mask_beside_a_causal_one_is_refused_on_every_rank() -> None:
    for said in notebook_launcher(masks_twice, (), 2, device="cpu", timeout_s=100):
        assert "attention with attn_mask and is_causal=True" in said
        assert "make attn_mask causal itself" in said


# ── what a rank reads, and what a metric counts ───────────────────────────────────────────────────


def reads(dispatches: bool) -> dict[str, Any]:
    accelerator = Accelerator(
        cpu=True,
        strategy=SequenceParallel(2),
        dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatches),
    )
    tokens = torch.arange(5 * 4).view(5, 4)
    dataset = [{"x": one, "row": one[:1], "name": f"row {int(one[0]) // 4}"} for one in tokens]
    loader = accelerator.prepare(DataLoader(dataset, batch_size=2))
    parts, joined, rows, names = [], [], [], []
    for batch in loader:
        parts += batch["x"].tolist()
        joined += accelerator.gather_for_metrics(batch["x"]).tolist()
        rows += accelerator.gather_for_metrics(batch["row"]).tolist()
        names += accelerator.gather_for_metrics(batch["name"])
    try:
        for batch in loader:
            accelerator.gather_for_metrics(batch["x"].sum(1))
        said = ""
    except RuntimeMisuse as error:
        said = str(error)
    return {
        "parts": parts,
        "joined": joined,
        "rows": rows,
        "names": names,
        "said": said,
        "mesh": accelerator.torch_device_mesh.mesh_dim_names,
        "rank": accelerator.context_parallel_rank,
        "length": len(loader),
    }


@pytest.mark.parametrize("dispatches", [False, True])
def test_ranks_of_a_sequence_read_its_parts_and_metrics_count_each_token_once(
    dispatches: bool,
) -> None:
    told = notebook_launcher(reads, (dispatches,), 4, device="cpu", timeout_s=100)
    whole = torch.arange(20).view(5, 4)
    assert [one["parts"][0] for one in told] == [[0, 1], [2, 3], [8, 9], [10, 11]]
    for rank, one in enumerate(told):
        assert sorted(one["joined"]) == whole.tolist()
        assert sorted(one["rows"]) == [[4 * row] for row in range(5)]
        assert sorted(one["names"]) == [f"row {row}" for row in range(5)]
        assert "differs between the ranks of one sequence" in one["said"]
        assert "gather values of tokens" in one["said"]
        assert one["mesh"] == ("dp_replicate", "sp")
        assert one["rank"] == rank % 2
        assert one["length"] == 2


def padded(pad: Any) -> list[list[list[int]]]:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2, pad=pad))
    tokens = torch.ones(2, 3, dtype=torch.int64)
    dataset: Any = TensorDataset(tokens, tokens)
    if "x" in pad:
        dataset = [{"x": one, "y": one} for one in tokens]
    batch = next(iter(accelerator.prepare(DataLoader(dataset, batch_size=2))))
    return [one.tolist() for one in (batch.values() if isinstance(batch, dict) else batch)]


def padded_both_ways() -> list[list[list[list[int]]]]:
    return [padded({"x": 0, "y": -100}), padded({0: 0, 1: -100})]


def test_sequences_are_lengthened_with_what_each_entry_is_filled_with() -> None:
    told = notebook_launcher(padded_both_ways, (), 2, device="cpu", timeout_s=100)
    assert told[0] == [[[[1, 1], [1, 1]], [[1, 1], [1, 1]]]] * 2
    assert told[1] == [[[[1, 0], [1, 0]], [[1, -100], [1, -100]]]] * 2


# ── losses of which parts count unlike numbers of tokens ──────────────────────────────────────────


def normalizes(strategy: Any) -> list[float]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, strategy=strategy)
    inputs, targets = data(8).tensors
    targets = targets.masked_fill(torch.arange(targets.shape[1]) < 7, -100)  # the first part has 1
    targets[::3, 9:] = -100
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    size = 4 // accelerator._engine.layout.data_size
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(inputs, targets), batch_size=size)
    )
    norms = []
    for x, y in loader:
        with accelerator.accumulate(model):
            logits, wanted = model(x).flatten(0, 1), y.flatten()
            total = F.cross_entropy(logits, wanted, reduction="sum")
            accelerator.backward(accelerator.normalize(total, (wanted != -100).sum()))
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 1e9).item())
            optimizer.step()
            optimizer.zero_grad()
    state = accelerator.get_state_dict(model)  # of shards: on the first rank
    return [*norms, *(state["leave.bias"].tolist() if state else [])]


def normalizes_both_ways() -> list[list[float]]:
    return [normalizes(SequenceParallel(2)), normalizes(TensorParallel(2, PLAN))]


def test_a_normalized_loss_weighs_every_token_alike_also_where_layers_are_divided() -> None:
    alone = notebook_launcher(normalizes, (SingleDevice(),), 1, device="cpu")[0]
    for found in notebook_launcher(normalizes_both_ways, (), 2, device="cpu", timeout_s=100)[0]:
        assert found == pytest.approx(alone, abs=1e-6)


# ── whole sequences again, and models that cannot be tried ────────────────────────────────────────


class Even(Net):
    """Takes no sequences of fewer than 20 tokens a rank."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if x.shape[1] < 20:
            raise ValueError("too few tokens")
        return super().forward(x, position_ids)


def computes_whole() -> tuple[bool, bool]:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2))
    model, loader = accelerator.prepare(Even(), DataLoader(tokens(2, 48), batch_size=2))
    whole = tokens(2, 48)
    with torch.no_grad():
        (part,) = [model(one) for one in loader]
        with whole_sequences(model):
            wanted = model(whole)
        (again,) = [model(one) for one in loader]
    mine = wanted.chunk(2, 1)[accelerator.process_index]
    return torch.allclose(mine, part, atol=1e-5), torch.equal(part, again)


def test_a_block_takes_whole_sequences_and_a_model_that_cannot_be_tried_is_noted() -> None:
    run = notebook_launcher(computes_whole, (), 2, device="cpu", timeout_s=100)
    assert list(run) == [(True, True)] * 2
    said = "".join(run.logs())
    assert "note: Even was not tried with 16 tokens (ValueError: too few tokens)" in said


class Remembering(Net):
    """Takes what models of transformers take to generate text."""

    def forward(
        self, x: Tensor, position_ids: Tensor | None = None, use_cache: bool = False
    ) -> Tensor:
        return super().forward(x, position_ids)


def trains_with_a_cache() -> bool:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2))
    model, loader = accelerator.prepare(Remembering(), DataLoader(tokens(2, 16), batch_size=2))
    (part,) = loader
    alike = torch.equal(model(part, use_cache=True), model(part))
    with torch.no_grad():
        model(tokens(2, 16), use_cache=True)  # a prompt
        with pytest.raises(
            RuntimeMisuse, match="8 tokens with use_cache=True and without"
        ) as error:
            model(part, use_cache=True)
        assert "leave use_cache out" in error.value.fix
        with whole_sequences(model):
            model(tokens(2, 8), use_cache=True)
    return alike


class FailsOnOne(Net):
    """Cannot take as many tokens as are tried, on one rank only."""

    rank = 0

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if self.rank == 1 and x.shape[1] == 16:
            raise ValueError("too many tokens")
        return super().forward(x, position_ids)


def fails_on_one_rank() -> int:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2))
    model, loader = accelerator.prepare(FailsOnOne(), DataLoader(tokens(2, 64), batch_size=2))
    accelerator.unwrap_model(model).rank = accelerator.process_index
    (part,) = loader
    return int(model(part).shape[1])


def test_a_model_that_one_rank_cannot_try_is_tried_by_none() -> None:
    run = notebook_launcher(fails_on_one_rank, (), 2, device="cpu", timeout_s=60)
    assert list(run) == [32, 32]
    notes = [line for line in run.logs if "was not tried with 16 tokens" in line]
    assert len(notes) == 1 and "ValueError: too many tokens" in notes[0]


def test_what_is_trained_is_a_part_although_it_asks_for_a_cache() -> None:
    assert list(notebook_launcher(trains_with_a_cache, (), 2, device="cpu", timeout_s=100)) == [
        True,
        True,
    ]


# ── Accelerate's faces ────────────────────────────────────────────────────────────────────────────


def cuts_in_the_loop(exchange: str | None) -> dict[str, Any]:
    handler = exchange and TorchContextParallelConfig(exchange)
    axes = ParallelismConfig(cp_size=2, cp_handler=handler) if exchange is not None else None
    accelerator = Accelerator(cpu=True, parallelism_config=axes)
    dataset, model = data(8), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(dataset, batch_size=4)
    )
    losses, lengths = [], []
    for x, y in loader:
        lengths.append(x.shape[1])
        with accelerator.maybe_context_parallel([x, y], [1, 1], {y}):
            lengths.append(x.shape[1])
            loss = loss_of(model(x), y)
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        lengths += [x.shape[1], y.shape[1]]
        with torch.no_grad():  # whole sequences are computed as ever
            losses.append(loss_of(model(dataset.tensors[0]), dataset.tensors[1]).item())
    mesh = accelerator.torch_device_mesh
    return {
        "losses": losses,
        "lengths": lengths,
        "mesh": mesh and mesh.mesh_dim_names,
        "axes": axes and axes.fsdp_dim_names,
        "rank": accelerator.context_parallel_rank,
    }


def cuts_both_ways() -> list[dict[str, Any]]:
    return [cuts_in_the_loop(how) for how in ("allgather", "alltoall")]


def test_buffers_are_cut_in_the_loop_as_accelerate_has_it() -> None:
    alone = notebook_launcher(cuts_in_the_loop, (None,), 1, device="cpu")[0]
    assert alone["mesh"] is None and set(alone["lengths"]) == {16}
    told = notebook_launcher(cuts_both_ways, (), 2, device="cpu", timeout_s=100)
    for rank, both in enumerate(told):
        for one in both:
            assert one["losses"] == pytest.approx(alone["losses"], abs=1e-5)
            assert one["lengths"] == [16, 8, 16, 8] * 2
            assert (one["mesh"], one["rank"], one["axes"]) == (("cp",), rank, ["cp"])


def wishes() -> str:
    accelerator = Accelerator(cpu=True)
    assert accelerator.torch_device_mesh["sp"].size() == 2
    return str(accelerator._engine._sequence)


def test_the_environment_divides_sequences() -> None:
    env = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_SP_SIZE": "2"}
    env |= {
        "PARALLELISM_CONFIG_SP_SEQ_LENGTH": "16",
        "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE": "false",
    }
    told = notebook_launcher(wishes, (), 2, device="cpu", env=env)[0]
    assert told == str(SequenceParallel(size=2, exchange="heads", length=16))


@pytest.mark.parametrize(
    ("sizes", "world", "wish"),
    [
        ({"cp_size": 2}, 2, SequenceParallel(2, "keys", cut="context")),
        ({"sp_size": 2, "dp_replicate_size": 2}, 4, SequenceParallel(2)),
        ({"sp_size": 2, "dp_shard_size": 2}, 4, SequenceParallel(2, data=FSDP())),
        (
            {"sp_size": 2, "tp_size": 2},
            4,
            SequenceParallel(2, data=TensorParallel(size=2, data=FSDP())),
        ),
    ],
)
def test_axes_of_sequences_are_wishes(sizes: dict, world: int, wish: Any) -> None:
    assert ParallelismConfig(**sizes).wish(world) == wish


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: ParallelismConfig(cp_size=2, sp_size=2), "cp_size=2, sp_size=2"),
        (lambda: ParallelismConfig(cp_size=2, cp_backend="jax"), "cp_backend='jax'"),
        (lambda: ParallelismConfig(cp_size=2, cp_handler=3), "cp_handler=3"),
        (lambda: TorchContextParallelConfig("ring"), "cp_comm_strategy='ring'"),
        (
            lambda: DeepSpeedSequenceParallelConfig(sp_attn_implementation="flash_attention_2"),
            "sp_attn_implementation='flash_attention_2'",
        ),
        (
            lambda: DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=False),
            "sp_seq_length_is_variable=False without sp_seq_length",
        ),
        (lambda: SequenceParallel(size=0), "SequenceParallel(size=0)"),
        (lambda: SequenceParallel(exchange="rings"), "exchange='rings'"),
        (lambda: SequenceParallel(cut="never"), "cut='never'"),
        (lambda: SequenceParallel(data=Pipeline()), "SequenceParallel(data=Pipeline("),
    ],
)
def test_a_wish_that_cannot_be_is_refused(make: Any, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert what in error.value.what


def test_one_rank_alone_cannot_divide_sequences_and_one_part_is_the_whole() -> None:
    with pytest.raises(ConfigError, match="in a world of 1 rank"):
        Accelerator(cpu=True, strategy=SequenceParallel(2))
    assert Accelerator(cpu=True, strategy=SequenceParallel(1))._engine.wish == DDP()


# ── what cannot be, on every rank alike ───────────────────────────────────────────────────────────


class Forgetful(Net):
    """Takes the places of a part for those of the whole."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Handmade(nn.Module):
    """Attention with masks of its own making, or heads that do not divide."""

    def __init__(self, num_heads: int = 2, masked: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.num_heads, self.masked = num_heads, masked

    def forward(self, x: Tensor) -> Tensor:
        q = self.words(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        square = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = square if self.masked else None
        return F.scaled_dot_product_attention(q, q, q, mask).transpose(1, 2).flatten(2)


class Pooled(nn.Module):
    """One output for a sequence: a mean over its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1)


def with_config(**config: Any) -> Net:
    model = Net()
    model.config = SimpleNamespace(**config)  # type: ignore[assignment]
    return model


def tokens(*shape: int) -> Tensor:
    return torch.arange(int(torch.tensor(shape).prod())).remainder(11).view(shape)


def odd_batch(rank: int) -> Tensor:
    return tokens(4, 8) + rank


# name: (wish, model, dataset, what the loop gives the model)
REFUSED: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
    "places": ({}, Forgetful, tokens(4, 8), lambda x: x),
    "pooled": ({}, Pooled, tokens(4, 8), lambda x: x),
    "heads": ({}, lambda: Handmade(3), tokens(4, 8), lambda x: x),
    "said heads": ({}, lambda: with_config(num_attention_heads=3), tokens(4, 8), lambda x: x),
    "torch's heads": ({}, lambda: nn.MultiheadAttention(6, 3), tokens(4, 8), lambda x: x),
    "mask": ({"check": False}, lambda: Handmade(2, True), tokens(4, 8), lambda x: x),
    "eager": ({}, lambda: with_config(_attn_implementation="eager"), tokens(4, 8), lambda x: x),
    "window": ({}, lambda: with_config(sliding_window=4), tokens(4, 8), lambda x: x),
    "length": ({}, Net, tokens(4, 7), lambda x: x),
    "fixed": ({"length": 16}, Net, tokens(4, 8), lambda x: x),
    "no tokens": ({}, Net, tokens(4), lambda x: x),
    "shifted": ({}, Net, tokens(4, 8), lambda x: x[:, :-1]),
    "own batch": ({}, Net, tokens(4, 8), lambda x: tokens(2, 3)),
    "unlike": ({}, Net, odd_batch, lambda x: x),
    "pad": ({"pad": {"y": 0}}, Net, tokens(4, 8), lambda x: x),
    "buffers": ({"cut": "context"}, Net, tokens(4, 8), lambda x: x),
    "dims": ({"cut": "context"}, Net, tokens(4, 8), lambda x: x),
}


def refuses(names: list[str]) -> dict[str, str]:
    said = {}
    for name in names:
        settings, model, dataset, given = REFUSED[name]
        accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2, **settings))
        if callable(dataset):
            dataset = dataset(accelerator.process_index)
        try:
            loader = DataLoader(TensorDataset(dataset), batch_size=2)
            net, loader = accelerator.prepare(model(), loader)
            for (x,) in loader:
                buffers = [x, x[:, :4]] if name == "dims" else [x]
                dims = [1, 1] if name in ("buffers", "dims") else [1]
                with accelerator.maybe_context_parallel(buffers, dims):
                    net(given(x))
            said[name] = "nothing"
        except (ConfigError, RuntimeMisuse) as error:
            said[name] = f"{error.what} | {error.why} | {error.fix}"
    return said


WHAT_IS_SAID = {
    "places": ("Forgetful computes otherwise with parts of a sequence", "named position_ids"),
    "pooled": ("Pooled computes otherwise", "a mean over tokens"),
    "heads": ("attention with 3 heads, to be divided over 2 ranks", 'exchange="keys"'),
    "said heads": ("Net has attention with 3 heads", "size that divides 3"),
    "torch's heads": ("MultiheadAttention has attention with 3 heads", "size that divides 3"),
    "mask": ("an attention mask of 4 x 4 tokens, where a sequence has 8", "is_causal=True"),
    "eager": ("computes attention by 'eager'", 'attn_implementation="sdpa"'),
    "window": ("sliding window (4 tokens)", "config.sliding_window"),
    "length": ("sequences of 7 tokens, to be divided over 2", "pad_to_multiple_of=2"),
    "fixed": ("sequences of 8 tokens, where all have length=16", "pad"),
    "no tokens": ("a batch has no tensor with a dimension 1", "collate_fn"),
    "shifted": ("Net was given 3 tokens, where the parts of a sequence have 4", "shift inputs"),
    "own batch": (
        "Net was given 3 tokens, where the parts of a sequence have 4",
        "with whole_sequences",
    ),
    "unlike": ("2 ranks that share sequences read different batches", "set_seed"),
    "pad": ("SequenceParallel(pad=...) names 'y'", "{0: 0, 1: -100}"),
    "buffers": ("got 1 buffers and 2 buffer_seq_dims", "buffer_seq_dims=[1, 1]"),
    "dims": ("got sequences of 4 and 8 tokens", "buffer_seq_dims"),
}


def test_what_cannot_be_divided_is_refused_on_every_rank_alike() -> None:
    told = notebook_launcher(refuses, ([*REFUSED],), 2, device="cpu", timeout_s=100)
    assert told[0] == told[1]
    for name, words in WHAT_IS_SAID.items():
        for word in words:
            assert word in told[0][name], name


def stands(wish: SequenceParallel) -> None:
    Accelerator(cpu=True, strategy=wish)


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        (SequenceParallel(3), "SequenceParallel(size=3) in a world of 2 ranks"),
        (
            SequenceParallel(2, data=TensorParallel(2)),
            "SequenceParallel(size=2) x TensorParallel(size=2) in a world of 2 ranks",
        ),
    ],
)
def test_groups_that_do_not_fill_the_world_are_refused(wish: Any, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(stands, (wish,), 2, device="cpu", timeout_s=100)
    assert what in error.value.what
