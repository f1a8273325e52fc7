from notebook_accel.compat.parallelism_config import *
