"""How good a trained drafter is, and the card that says so."""
