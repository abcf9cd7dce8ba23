"""What passes over several rows take on real devices: public measurements, and what follows for others."""
