from notebook_accel.compat.data_loader import *
