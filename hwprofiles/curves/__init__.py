"""The cost of passes over several rows on real devices: public measurements, and prices for other devices."""
