"""Readers of every profiler's files. One file a reader: NAME, `accepts(head)`, `read(file, head)`; `reading.read(paths)` finds them all."""
