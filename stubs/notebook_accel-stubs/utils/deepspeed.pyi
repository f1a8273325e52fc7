from notebook_accel.compat.utils.deepspeed import *
