"""Where a run's numbers are kept: one small file a backend, each a ``GeneralTracker``."""
