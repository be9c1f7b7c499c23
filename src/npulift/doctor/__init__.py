"""What is wrong: with a log (`diagnose`), with this machine (`environment`), with a symptom (`symptoms`).

Everything here but the symptoms needs Python alone, so that `python -m npulift.doctor` works where nothing else is installed.
"""
