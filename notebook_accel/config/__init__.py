"""What is wanted: values that cross the fork downwards. No torch here."""
