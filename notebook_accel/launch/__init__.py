"""From a function to results: starts workers, watches them, ends them. Kernel side."""
