"""The shapes of drafted trees."""
