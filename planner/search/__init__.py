"""All schedules of a space, priced and ranked."""
