"""How long operations take: cost models, durations, and how much lanes slow each other."""
