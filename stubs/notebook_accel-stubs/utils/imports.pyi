from notebook_accel.compat.utils.imports import *
