from notebook_accel.compat.test_utils import *
