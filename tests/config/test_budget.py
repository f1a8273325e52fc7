"""What training occupies, strategy by strategy: against numbers worked out by hand."""

from __future__ import annotations

import pytest

from notebook_accel.config.budget import Training, budget, first_blocks, zero
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.offers import offers
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.sizes import Kept, Sizes, Weight
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from notebook_accel.errors import ConfigError

KEPT = Kept(outside=10, blocks=(30, 50), inputs=4, divided=40, batch="8 x 3")
NET = Sizes(
    "Net",
    (Weight((100,)), Weight((10, 20), block=0, cut=0), Weight((10, 30), block=1, cut=1)),
    kept=KEPT,
)  # 600 numbers


def test_one_process_with_adam_holds_sixteen_bytes_a_parameter_and_a_count_of_steps() -> None:
    one = budget(SingleDevice(), NET, Training())
    assert one is not None
    assert (one.weights, one.gradients, one.optimizer) == (2400, 2400, 4800 + 3 * 4)
    assert (one.activations, one.other, one.host) == (90, 0, 0)
    assert one.total == 16 * 600 + 12 + 90 == one.as_data()["total"]


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    sizes = Sizes("Net", (Weight((100,), learns=False), Weight((10,))))
    one = budget(DDP(), sizes, Training(2))
    assert one is not None
    assert (one.weights, one.gradients, one.optimizer, one.other) == (440, 40, 84, 40)


def test_copies_are_what_was_measured_else_all_float32_weights() -> None:
    known = Sizes("Net", (Weight((100,)), Weight((10,), 2)), kept=Kept(copies=6))
    guessed = Sizes("Net", (Weight((100,)), Weight((10,), 2)))
    assert [one.copies("bf16") for one in (known, guessed)] == [6, 200]
    assert known.copies("no") == 0


def test_ddp_sends_gradients_from_buckets_unless_they_are_views_of_them() -> None:
    whole = budget(DDP(), NET, Training(2))
    views = budget(DDP(gradient_as_bucket_view=True), NET, Training(2))
    assert whole is not None and views is not None
    assert (whole.other, views.other) == (2400, 0)


def test_fsdp_rounds_rows_up_on_the_first_rank_and_gathers_blocks() -> None:
    one = budget(FSDP(), NET, Training(4))
    assert one is not None
    assert one.weights == 4 * (25 + 3 * 20 + 3 * 30)  # 10 rows over 4 ranks: 3, 3, 3, 1
    assert (one.gradients, one.optimizer) == (one.weights, 2 * one.weights + 12)
    # Outside of blocks 100 numbers, the largest block 300, and its gradients as it sends them.
    assert one.other == 4 * (100 + 2 * 300 + 2 * 300)
    kept = budget(FSDP(reshard_after_forward=False), NET, Training(4))
    assert kept is not None and kept.other == 4 * (600 + 2 * 300)
    at_once = budget(FSDP(auto_wrap_policy="no_wrap"), NET, Training(4))
    assert at_once is not None and at_once.other == 4 * (600 + 2 * 600)
    copies = budget(FSDP(replicas=2), NET, Training(4))
    halves = budget(FSDP(), NET, Training(2))
    assert copies == halves


def test_recomputing_keeps_inputs_of_blocks_and_one_block_and_offloading_moves_to_the_host() -> (
    None
):
    one = budget(FSDP(cpu_offload=True, activation_checkpointing=True), NET, Training(4))
    shards = budget(FSDP(), NET, Training(4))
    assert one is not None and shards is not None
    assert one.activations == 10 + 4 + 50
    assert (one.weights, one.gradients, one.optimizer) == (0, 0, 0)
    assert one.host == shards.weights + shards.gradients + shards.optimizer


def test_tensor_parallel_divides_its_layers_and_what_they_make() -> None:
    one = budget(TensorParallel(size=2), NET, Training(2))
    assert one is not None
    assert one.weights == 4 * (100 + 5 * 20 + 10 * 15)
    assert one.activations == 90 - 20
    both = budget(TensorParallel(size=2), NET, Training(4))
    assert both is not None and both.weights == 4 * (50 + 3 * 20 + 5 * 15)


def test_the_first_stage_of_a_pipeline_keeps_every_micro_batch_and_the_last_only_one() -> None:
    """Narayanan et al. 2021, section 2.2: 1F1B keeps S micro-batches on the first stage."""
    one = budget(Pipeline(stages=2, num_microbatches=4), NET, Training(2))
    assert one is not None
    # The second stage has 300 numbers and keeps a quarter of 50 and 10; the first keeps 30 * 2 / 4.
    assert (one.weights, one.gradients, one.activations) == (1200, 1200, 15)
    gpipe = budget(Pipeline(stages=2, num_microbatches=4, schedule="gpipe"), NET, Training(2))
    assert gpipe is not None and gpipe.activations == 60
    shards = budget(Pipeline(stages=2, inside=FSDP()), NET, Training(4))
    assert shards is not None and shards.weights == 600


def test_sequence_parallelism_divides_activations_and_megatron_is_what_serves_it() -> None:
    whole, part = (budget(one, NET, Training(2)) for one in (FSDP(), SequenceParallel(data=FSDP())))
    assert whole is not None and part is not None
    assert (part.activations, part.weights) == (45, whole.weights)
    assert budget(Megatron(pp_degree=2), NET, Training(2)) == budget(
        Pipeline(stages=2), NET, Training(2)
    )


def test_deepspeed_is_counted_by_its_stage_and_what_is_offloaded() -> None:
    for wish, counted in (
        (DeepSpeed(zero_stage=3), zero(3, NET, Training(2))),
        (DeepSpeed(offload_optimizer="cpu"), zero(2, NET, Training(2), on_host=True)),
        (DeepSpeed(zero_stage=3, offload_param="cpu"), zero(3, NET, Training(2), True, True)),
    ):
        assert budget(wish, NET, Training(2)) == counted


def test_stages_begin_at_about_equal_shares_of_numbers() -> None:
    assert first_blocks([1, 1, 1, 1], 2) == [2]
    assert first_blocks([5, 1, 1, 1], 2) == [1]
    assert first_blocks([1, 1, 9], 3) == [1, 2]


def test_zero_keeps_half_precision_weights_and_float32_ones_with_the_states() -> None:
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12 bytes a parameter, K=12."""
    plain = Sizes("Net", (Weight((1000,)),))
    found = [zero(stage, plain, Training(2, "fp16", "adam")) for stage in (1, 2, 3)]
    assert [one.weights for one in found] == [2000, 2000, 1000]
    assert [one.gradients for one in found] == [2000, 1000, 1000]
    assert [one.optimizer for one in found] == [(12_000 + 4) // 2] * 3
    offloaded = zero(2, plain, Training(2, "fp16", "adam"), on_host=True)
    assert (offloaded.gradients, offloaded.optimizer, offloaded.host) == (0, 0, 1000 + 6002)


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"optimizer='adamv' is not known(.|\n)*'adamw'"):
        Training(1, "no", "adamv")


def test_every_offer_can_be_counted_and_what_nobody_counts_is_told_as_none() -> None:
    for ranks in (1, 2, 8):
        assert all(budget(one.wish, NET, Training(ranks)) for one in offers(NET, ranks))
    assert budget(Strategy(), NET, Training()) is None


def test_what_refuses_fp8_is_not_counted_in_it() -> None:
    fp8 = Training(8, "fp8")
    for wish in (DeepSpeed(zero_stage=3), Pipeline(stages=8), Megatron(pp_degree=2)):
        assert budget(wish, NET, fp8) is None
        assert budget(wish, NET, Training(8, "bf16")) is not None
    assert budget(SequenceParallel(size=2, data=DeepSpeed()), NET, fp8) is None
    assert budget(FSDP(), NET, fp8) is not None


def test_a_number_of_parameters_is_taken_for_equal_blocks() -> None:
    sizes = Sizes.of_number(7_000_000_001)
    assert (sizes.num_parameters, sizes.num_blocks) == (7_000_000_001, 32)
    assert "taken for 32 equal blocks" in sizes.why
    assert Sizes.of_number(5).num_parameters == 5
