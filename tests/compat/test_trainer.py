"""transformers' Trainer, driven through our runtime on a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notebook_accel import notebook_launcher
from tests.support.ranks import run_ranks

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def train(folder: str, accumulation: int, resume: bool = False) -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from notebook_accel import Accelerator, use_in_trainer

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape, **heads))
    generator = torch.Generator().manual_seed(1)

    def rows(num: int) -> list[dict[str, torch.Tensor]]:
        tokens = torch.randint(0, 64, (num, 8), generator=generator)
        return [{"input_ids": one, "labels": one} for one in tokens]

    with use_in_trainer():
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                folder,
                use_cpu=True,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=4,
                gradient_accumulation_steps=accumulation,
                num_train_epochs=1,
                learning_rate=1e-2,
                logging_steps=1,
                save_steps=2,
                report_to=[],
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=rows(64),
            eval_dataset=rows(61),
            compute_metrics=lambda given: {"rows": len(given.label_ids)},
        )
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if resume else None)
        evaluation = trainer.evaluate()
        predictions = trainer.predict(rows(13)).predictions
        trainer.save_model(f"{folder}/final")
    assert isinstance(trainer.accelerator, Accelerator)
    history = trainer.state.log_history
    return {
        "steps": trainer.state.global_step,
        "world": trainer.args.world_size,
        "losses": [one["loss"] for one in history if "loss" in one],
        "norms": [one["grad_norm"] for one in history if "grad_norm" in one],
        "rows": [evaluation["eval_rows"], len(predictions)],
        "eval loss": evaluation["eval_loss"],
        "weights": sum(one.double().sum().item() for one in trainer.model.parameters()),
    }


def test_a_trainer_trains_evaluates_predicts_saves_and_resumes_alike_on_one_and_two_ranks(
    tmp_path: Path,
) -> None:
    one = notebook_launcher(train, (str(tmp_path / "1"), 4), num_processes=1, device="cpu")
    two = notebook_launcher(train, (str(tmp_path / "2"), 2), num_processes=2, device="cpu")
    again = notebook_launcher(train, (str(tmp_path / "2"), 2, True), num_processes=2, device="cpu")
    assert [run[0]["world"] for run in (one, two)] == [1, 2]
    for run in (one, two, again):
        assert run[0]["steps"] == 4 and run[0]["rows"] == [61, 13]
        assert run[0]["weights"] == pytest.approx(one[0]["weights"], rel=1e-5)
        assert run[0]["eval loss"] == pytest.approx(one[0]["eval loss"], rel=1e-5)
    assert two[0]["losses"] == pytest.approx(one[0]["losses"], rel=1e-4)
    assert two[0]["norms"] == pytest.approx(one[0]["norms"], rel=1e-3)
    assert two[0]["weights"] == two[1]["weights"]
    assert list(two.history["loss"]) == pytest.approx(two[0]["losses"])  # its logs are the curve
    assert (tmp_path / "2" / "checkpoint-4" / "model.safetensors").exists()
    assert (tmp_path / "2" / "final" / "model.safetensors").exists()


def injected_by_one_assignment() -> list[object]:
    import tempfile

    import torch
    import transformers.trainer
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from notebook_accel import Accelerator

    transformers.trainer.Accelerator = Accelerator
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **shape, **heads))
    rows = [
        {"input_ids": one, "labels": one} for one in torch.arange(104).remainder(16).view(13, 8)
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
        args = TrainingArguments(
            folder, per_device_train_batch_size=2, per_device_eval_batch_size=2, **options
        )
        trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        predicted = trainer.predict(rows).predictions
    return [type(trainer.accelerator).__module__, args.world_size, len(predicted)]


def test_replacing_one_name_is_enough_where_ranks_are_torchruns() -> None:
    assert run_ranks(injected_by_one_assignment, 2) == [
        ["notebook_accel.runtime.accelerator", 2, 13],
        ["notebook_accel.runtime.accelerator", 2, 13],
    ]
