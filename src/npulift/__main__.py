"""`python -m npulift` is the same as `npulift`."""

from npulift.cli import main

if __name__ == "__main__":
    main()
