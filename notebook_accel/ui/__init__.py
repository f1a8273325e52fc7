"""From events to eyes: where we are, the picture, the live view."""
