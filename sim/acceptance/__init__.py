"""What the models say: drawn acceptance and the replay of acceptance records."""
