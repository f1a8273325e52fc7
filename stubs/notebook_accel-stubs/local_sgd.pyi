from notebook_accel.compat.local_sgd import *
