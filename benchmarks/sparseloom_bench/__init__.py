"""Benchmarks, experiments and the demo of sparseloom: what `sparseloom bench | experiment | demo` runs.

A package of its own, so that the library's wheel brings none of it; it uses what is public of the library.
"""
