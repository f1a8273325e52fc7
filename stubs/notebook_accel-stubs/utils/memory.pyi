from notebook_accel.compat.utils.memory import *
