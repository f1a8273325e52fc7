from notebook_accel.compat.scheduler import *
