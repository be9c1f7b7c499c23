"""Comparisons with what a user would pick instead. Each file has main(); `python -m benchmarks [name ...]` runs them. None is a test."""
