"""Shapes: which sizes really occur, which buckets to compile for them, and how to pad without changing the answer."""
