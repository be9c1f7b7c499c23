"""Journal: every finished trial of a tuning run in SQLite, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.messages import _

_TABLES = """
CREATE TABLE IF NOT EXISTS run (identity TEXT PRIMARY KEY, spent_s REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS trial (position INTEGER PRIMARY KEY, change TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incumbent (one INTEGER PRIMARY KEY CHECK (one = 1), record TEXT NOT NULL);
"""


class Journal:
    """The journal of one run. identity: what makes two runs the same; a file that holds another run's trials is emptied."""

    def __init__(self, path: Path, identity: str) -> None:
        try:
            self._open(path)
        except sqlite3.DatabaseError:  # damaged: its trials are lost, the run is not
            self._db.close()
            for leftover in path.parent.glob(path.name + "*"):
                leftover.unlink()
            self._open(path)
        try:
            row = self._db.execute("SELECT identity FROM run").fetchone()
            self.resumed = row is not None and row[0] == identity
            if not self.resumed:
                with self._db:
                    for table in ("run", "trial", "incumbent"):
                        self._db.execute(f"DELETE FROM {table}")
                    self._db.execute("INSERT INTO run (identity) VALUES (?)", (identity,))
        except sqlite3.Error as error:
            raise _unwritable(path, error) from error
        self._path = path

    def _open(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=10)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_TABLES)

    def trials(self) -> list[dict[str, Any]]:
        """The finished trials, in order."""
        return [json.loads(r) for (r,) in self._db.execute("SELECT record FROM trial ORDER BY position")]

    def incumbent(self) -> dict[str, Any] | None:
        """The best so far, as it was recorded with the trial that made it so."""
        row = self._db.execute("SELECT record FROM incumbent").fetchone()
        return json.loads(row[0]) if row else None

    def finish(self, change: str, record: dict[str, Any], incumbent: dict[str, Any] | None, seconds: float) -> None:
        """Record a finished trial and, when it was kept, the new incumbent: both or neither."""
        try:
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO trial (change, record) VALUES (?, ?)", (change, json.dumps(record, ensure_ascii=False)))
                if incumbent is not None:
                    self._db.execute("INSERT OR REPLACE INTO incumbent (one, record) VALUES (1, ?)", (json.dumps(incumbent, ensure_ascii=False),))
                self._db.execute("UPDATE run SET spent_s = spent_s + ?", (seconds,))
        except sqlite3.Error as error:
            raise _unwritable(self._path, error) from error

    @property
    def spent(self) -> float:
        """Seconds spent on finished trials, in this and earlier runs."""
        return float(self._db.execute("SELECT spent_s FROM run").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _unwritable(path: Path, error: sqlite3.Error) -> NpuliftError:
    return NpuliftError(_("The journal {path} cannot be written: {error}. Make room or choose another --out; finished trials are kept.").format(
        path=path, error=error), exit_code=1)
