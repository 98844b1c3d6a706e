"""Benchmarks our kernels against torch's dense products and the machine's peak; each run writes one JSON
file."""
