from notebook_accel.compat.hooks import *
