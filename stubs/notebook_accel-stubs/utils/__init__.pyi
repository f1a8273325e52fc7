from notebook_accel.compat.utils import *
