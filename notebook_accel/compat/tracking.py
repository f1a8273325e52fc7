"""Accelerate's ``tracking`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.trackers.base import GeneralTracker, on_main_process
from notebook_accel.runtime.trackers.clearml import ClearMLTracker
from notebook_accel.runtime.trackers.experiments import (
    AimTracker,
    CometMLTracker,
    DVCLiveTracker,
    MLflowTracker,
)
from notebook_accel.runtime.trackers.files import CSVTracker, JSONLTracker
from notebook_accel.runtime.trackers.hosted import SwanLabTracker, TrackioTracker, WandBTracker
from notebook_accel.runtime.trackers.tensorboard import TensorBoardTracker
from notebook_accel.runtime.tracking import (
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
)

LOGGER_TYPE_TO_CLASS = {
    one.name: one
    for one in (
        AimTracker,
        ClearMLTracker,
        CometMLTracker,
        DVCLiveTracker,
        MLflowTracker,
        SwanLabTracker,
        TensorBoardTracker,
        TrackioTracker,
        WandBTracker,
    )
}

__all__ = [
    "LOGGER_TYPE_TO_CLASS",
    "AimTracker",
    "CSVTracker",
    "ClearMLTracker",
    "CometMLTracker",
    "DVCLiveTracker",
    "GeneralTracker",
    "JSONLTracker",
    "MLflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "TrackioTracker",
    "WandBTracker",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
]

__getattr__ = _door(__name__)
