"""LSTM, GRU, and the wide and sparse cell."""
