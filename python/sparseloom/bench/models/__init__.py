"""Whole models of other packages, patched, trained, saved, reloaded and timed against their dense selves."""
