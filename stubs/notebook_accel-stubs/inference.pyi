from notebook_accel.compat.inference import *
