"""What is looked at on a machine. One file an area; `check(machine)` yields Checks, `PROBES` and `SMOKE` are Python codes run in processes of their own.

A probe's name begins with the packages of which one must be installed, divided by '|', then ':' and what it does.
"""
