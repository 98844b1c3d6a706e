"""Measures sparse layers on several GPUs beside dense ones, a process for each: `sparseloom bench ranks`."""
