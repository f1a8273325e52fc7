from notebook_accel.compat.utils.environment import *
