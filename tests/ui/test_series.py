"""Which curves belong together."""

import pytest

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics
from notebook_accel.ui.series import groups, is_rate, pictures, split


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


def test_one_point_is_no_picture_but_stands_beside_a_curve_unless_it_is_a_setting():
    history = History()
    for name, num in (("loss", 2), ("val_loss", 1), ("accuracy", 1), ("lr", 2), ("lr/2", 1)):
        history.handle(Metrics(0, [(name, step, 1.0) for step in range(num)]))
    assert [group.names for group in pictures(history)] == [("loss", "val_loss"), ("lr",)]


def test_learning_rates_are_known_by_their_names():
    assert [name for name in ("lr", "lr/2", "train/learning_rate", "blur") if is_rate(name)] == [
        "lr",
        "lr/2",
        "train/learning_rate",
    ]
