from notebook_accel.compat.utils.transformer_engine import *
