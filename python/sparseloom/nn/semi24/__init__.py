"""2:4 layers, float and in 8 bits, and torch's own 2:4 tensors."""
