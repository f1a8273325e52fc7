from notebook_accel.compat.utils.operations import *
