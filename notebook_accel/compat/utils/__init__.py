"""Accelerate's ``utils`` package: everything that its modules name, in one place."""

from typing import Any

from notebook_accel.config.parallelism import ParallelismConfig as ParallelismConfig

from . import imports as _imports
from .ao import *
from .constants import *
from .dataclasses import *
from .deepspeed import *
from .environment import *
from .imports import *
from .megatron_lm import *
from .memory import *
from .modeling import *
from .operations import *
from .other import *
from .random import *
from .tqdm import tqdm as tqdm
from .transformer_engine import *
from .versions import *


def __getattr__(name: str) -> Any:
    return getattr(_imports, name)
