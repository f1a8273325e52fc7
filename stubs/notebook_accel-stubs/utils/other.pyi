from notebook_accel.compat.utils.other import *
