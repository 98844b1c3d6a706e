"""The demo: trains a byte-level transformer on real text, dense and block-sparse, saves, reloads and measures
it."""
