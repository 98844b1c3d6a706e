"""Convolutions: products and their gradients, plans, and the transposed ones."""
