from notebook_accel.compat.utils.ao import *
