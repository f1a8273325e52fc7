from notebook_accel.compat.accelerator import *
