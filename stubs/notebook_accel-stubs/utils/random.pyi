from notebook_accel.compat.utils.random import *
