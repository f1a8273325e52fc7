from notebook_accel.compat.utils.constants import *
