from notebook_accel.compat.utils.megatron_lm import *
