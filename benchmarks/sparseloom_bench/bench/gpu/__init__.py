"""Runs the suite `gpu`: it replays CUDA graphs with operands rotated past the L2, times dense and peers in
the same rounds, and checks every result."""
