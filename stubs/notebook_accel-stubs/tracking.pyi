from notebook_accel.compat.tracking import *
