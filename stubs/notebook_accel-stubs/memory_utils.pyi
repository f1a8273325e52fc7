from notebook_accel.compat.memory_utils import *
