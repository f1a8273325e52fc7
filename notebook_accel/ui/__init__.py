"""From events to eyes and from clicks to config. Kernel side."""
