"""The suite `gpu`: CUDA-graph replays, operands rotated past the L2, dense and peers in the same rounds,
every result checked."""
