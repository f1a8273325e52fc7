from notebook_accel.compat.state import *
