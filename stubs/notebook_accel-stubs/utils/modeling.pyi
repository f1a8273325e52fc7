from notebook_accel.compat.utils.modeling import *
