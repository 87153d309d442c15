"""Refuse sides whose sampling differs because one kept what the other replaced.

What a server adds is known only once it is probed, so this difference of the protocol is found
after the plans were compared: before the first sample of the side that is probed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.capabilities.sampling import SideSampling, find_unlike_policies
from serve_eval.protocol.fingerprint import SERVER_ADDS
from serve_eval.schema import SamplingDefaults, Task
from serve_eval.storage.reports.report_file import has_report, read_report


class PolicyCheck:
    """The sampling of the sides, as far as it is known.

    `allowed`: the sides may differ in it.
    """

    def __init__(self, allow_mismatch: Sequence[str]) -> None:
        self._allowed = SERVER_ADDS in allow_mismatch
        self._known: dict[str, SideSampling] = {}

    def note_folder(self, side: str, folder: Path) -> None:
        """Note the sampling of a finished run. Raises NotComparableError, as `note` does."""
        if has_report(folder):
            self._add(side, SideSampling.of_report(read_report(folder)))

    def note(self, side: str, found: SamplingDefaults | None, tasks: Sequence[Task]) -> None:
        """Note the sampling of a side that was just probed.

        Raises NotComparableError if the other side is known and the policies of both ask otherwise.
        """
        self._add(side, SideSampling.of_tasks(found, tasks))

    def _add(self, side: str, sampling: SideSampling) -> None:
        self._known[side] = sampling
        if self._allowed or len(self._known) < 2:
            return
        unlike = find_unlike_policies(self._known["A"], self._known["B"])
        if unlike is not None:
            raise NotComparableError(
                "A and B do not ask the same:\n" + "\n".join(f"  {line}" for line in unlike.told),
                hint=(
                    f"Ask {unlike.keeps} again with --set server_defaults=neutral, as the"
                    " other side is"
                    f" asked. To compare anyway, give --allow-mismatch {SERVER_ADDS}."
                ),
            )
