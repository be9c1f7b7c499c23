"""The one exception that a user is meant to read."""

from __future__ import annotations


class NpuliftError(Exception):
    """Something the user can act on: what is wrong, where, and the next step, one sentence each.

    The command line prints it without a traceback (unless --debug) and exits with `exit_code`:
    2 for a mistake in the call, 1 for a failure of the work itself.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
