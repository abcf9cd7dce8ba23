"""What others published about acceptance, hidden draft steps and speed-ups; predictions use it or are judged by it."""
