from notebook_accel.compat.checkpointing import *
