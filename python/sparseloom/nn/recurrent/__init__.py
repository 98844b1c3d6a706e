"""LSTM, GRU, and the small-world LSTM."""
