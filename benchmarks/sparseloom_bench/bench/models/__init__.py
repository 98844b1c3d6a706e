"""Patches, trains, saves and reloads whole models of other packages, and times them against their dense
selves."""
