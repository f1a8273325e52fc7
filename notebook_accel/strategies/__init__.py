"""How a model lies across ranks: wishes become engines. Worker side."""
