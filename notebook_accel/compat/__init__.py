"""Names where Accelerate has them: ``notebook_accel.utils``, ``.state``, ``.data_loader``...

The package's search path reaches into this folder, so each module here is also a module of
``notebook_accel``. They define next to nothing: what they name lies in the other rooms.
"""
