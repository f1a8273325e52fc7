"""How a run survives: what it writes down, and how it finds itself again. Worker side."""
