"""What happens: values that cross the fork upwards. No torch here."""
