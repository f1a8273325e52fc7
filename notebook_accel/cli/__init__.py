"""The command line: parses argv and shows what comes back."""
