"""Write the result of `serve-eval verify`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.schema import Verification, VerificationReference


def write_result(
    found: Verification,
    used: VerificationReference | None,
    out_dir: Path,
    addresses: Mapping[str, str],
) -> dict[str, str]:
    """Write the result, and the reference that it made, into the folder.

    Return `addresses`, those with which a further command reaches the servers, by name: of servers
    that a night stops, the plan is what starts them again.
    """
    from serve_eval.storage.file_names import VERIFICATION_REFERENCE
    from serve_eval.storage.reports.folder_results import find_served_plans, shorten_url
    from serve_eval.storage.reports.story_results import write_reference
    from serve_eval.storage.story_files import VERIFY
    from serve_eval.workflows.verify.result import lacks_floor

    VERIFY.write(out_dir, found)
    if used is not None:
        write_reference(out_dir / VERIFICATION_REFERENCE, used)
    plans = find_served_plans(out_dir) if lacks_floor(found) else {}
    return {name: plans.get(shorten_url(place), place) for name, place in addresses.items()}
