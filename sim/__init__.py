"""The SimPy world: plays a schedule with measured latencies and recorded acceptance."""
