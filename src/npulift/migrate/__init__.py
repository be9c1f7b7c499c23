"""migrate: a CUDA script as an NPU script, as a diff."""

from npulift.migrate.command import migrate
from npulift.migrate.script import Migrated, migrate_source

__all__ = ["Migrated", "migrate", "migrate_source"]
