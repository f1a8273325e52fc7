from notebook_accel.compat.optimizer import *
