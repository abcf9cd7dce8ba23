"""The cost of passes over several rows: public measurements, and predictions from them for other devices."""
