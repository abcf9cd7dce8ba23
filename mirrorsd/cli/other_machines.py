"""Says when a profile or a record is of another machine: its times do not hold here, and near ties fall otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorsd.cli.console import escaped, say

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from hwprofiles.profile import Profile


def say_whose(profile: Profile | None, record: AcceptanceRecord | None = None, *, runs: bool = False) -> None:
    """A line for each of them that is of another machine than this one; `runs` is whether anything runs here."""
    from hwprofiles.host import differences

    if profile is not None and (found := differences(profile.host)) is not None:
        effect = ": what is predicted is of that machine, what is measured of this one" if runs else ""
        say(f"[yellow]The profile is of another machine ({escaped(found)}){effect}.[/]")
    if record is not None and record.host is not None and (found := differences(record.host)) is not None:
        effect = ": texts may differ, and rounds with them" if runs else ""
        say(f"[yellow]The record was made on another machine ({escaped(found)}){effect}.[/]")
