from notebook_accel.compat.utils.versions import *
