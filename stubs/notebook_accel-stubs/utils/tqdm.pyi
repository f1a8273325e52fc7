from notebook_accel.compat.utils.tqdm import *
