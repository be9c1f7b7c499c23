"""Our own profiles: Parquet written by Profile.write (`simulate --profile`, `advise --parquet` and kin)."""

from __future__ import annotations

from npulift.profile import Profile
from npulift.profilers.evidence import Part
from npulift.profilers.head import Head

NAME = "npulift profile"


def accepts(head: Head) -> bool:
    """Parquet's magic."""
    return head.data.startswith(b"PAR1")


def read(head: Head) -> Part:
    """The profile as it is; its kind stays."""
    profile = Profile.read(head.path)
    return Part(profile.source, profile.events, meta={**profile.meta}, notes=profile.notes, records=profile.events.height, kind=profile.kind)
