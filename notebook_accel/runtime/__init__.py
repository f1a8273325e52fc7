"""What a training loop holds in its hand. Worker side."""
