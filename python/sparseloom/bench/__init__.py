"""Benchmarks: kernels against torch's dense products and against the machine's peak, one JSON file per
run."""
