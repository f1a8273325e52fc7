"""Which samples a rank sees. Worker side."""
