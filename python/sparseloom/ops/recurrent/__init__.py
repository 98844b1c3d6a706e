"""Recurrent layers: steps, walks over sequences, and the norms between steps."""
