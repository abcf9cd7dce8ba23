"""How good a trained drafter is, and the card that reports it."""
