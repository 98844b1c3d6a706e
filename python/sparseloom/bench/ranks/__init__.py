"""Measures sparse layers on several GPUs beside dense ones, a process for each:
``torchrun --nproc-per-node 2 -m sparseloom.bench.ranks``."""
