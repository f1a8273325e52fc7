"""Which curves belong together."""

import pytest

from notebook_accel.ui.series import groups, is_rate, split


@pytest.mark.parametrize(
    ("name", "number", "part"),
    [
        ("loss", "loss", ""),
        ("val_loss", "loss", "val"),
        ("eval/loss", "loss", "eval"),
        ("valid-loss", "loss", "val"),
        ("test.accuracy", "accuracy", "test"),
        ("train/loss", "loss", "train"),
        ("Validation_loss", "loss", "val"),
        ("loss/2", "loss", ""),
        ("value_loss", "value_loss", ""),
        ("layer/0/norm", "layer/0/norm", ""),
        ("val_", "val_", ""),
    ],
)
def test_a_name_is_a_number_and_a_part_of_the_data(name, number, part):
    assert split(name) == (number, part)


def test_train_and_validation_stand_together_losses_first_and_rates_last():
    names = ["lr", "accuracy", "loss", "val_accuracy", "aux_loss", "eval_loss", "loss/2"]
    assert [(group.metric, group.names) for group in groups(names)] == [
        ("loss", ("loss", "eval_loss", "loss/2")),
        ("aux_loss", ("aux_loss",)),
        ("accuracy", ("accuracy", "val_accuracy")),
        ("lr", ("lr",)),
    ]


def test_learning_rates_are_known_by_their_names():
    assert [name for name in ("lr", "lr/2", "train/learning_rate", "blur") if is_rate(name)] == [
        "lr",
        "lr/2",
        "train/learning_rate",
    ]
