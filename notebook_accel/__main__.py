"""``python -m notebook_accel`` is the command ``notebook-accel``."""

import sys

from notebook_accel.cli.main import main

sys.exit(main())
