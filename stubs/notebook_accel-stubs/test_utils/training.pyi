from notebook_accel.compat.test_utils.training import *
