from notebook_accel.compat.logging import *
