"""Conclusions that one line cannot give: arithmetic, series, comparisons between ranks. One file an analysis; `new()` makes it."""
