"""What an acceptance record is made of."""
