from notebook_accel.compat.utils.dataclasses import *
