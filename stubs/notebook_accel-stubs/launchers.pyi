from notebook_accel.compat.launchers import *
