from notebook_accel.compat.big_modeling import *
