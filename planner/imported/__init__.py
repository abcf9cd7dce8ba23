"""What engines and their benchmarks write, read into what rows cost and how often drafted tokens are accepted."""
