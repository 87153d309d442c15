"""Write and print the result of `serve-eval verify`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.schema import Verification, VerificationReference


def show_verified(
    found: Verification,
    used: VerificationReference | None,
    out_dir: Path,
    addresses: Mapping[str, str],
    *,
    as_json: bool,
    notify_text: Path | None = None,
) -> int:
    """Write the files, print the result, and return the exit code.

    `addresses` are those with which a further command reaches the servers, by name.
    """
    from serve_eval.cli._ci_files import save_ci_files
    from serve_eval.cli._page import save_story_page
    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.storage.file_names import (
        PAGE_FILE,
        VERIFICATION,
        VERIFICATION_REFERENCE,
    )
    from serve_eval.evaluation.storage.private_files import read_written_text
    from serve_eval.evaluation.storage.reports.served import find_served_plans, shorten_url
    from serve_eval.evaluation.storage.reports.verification_files import (
        write_reference,
        write_verification,
    )
    from serve_eval.workflows.verify.ci import describe_verification
    from serve_eval.workflows.verify.page import make_verify_page
    from serve_eval.workflows.verify.text import lacks_floor, render

    plans = find_served_plans(out_dir)
    addresses = {
        # Of servers that a night stops, the plan is what starts them again.
        name: plans.get(shorten_url(place), place) if lacks_floor(found) else place
        for name, place in addresses.items()
    }
    files = [out_dir / VERIFICATION]
    write_verification(files[0], found)
    if used is not None:
        files.append(out_dir / VERIFICATION_REFERENCE)
        write_reference(files[1], used)
    if as_json:
        emit(read_written_text(files[0]))
    else:
        draw(lambda console: render(found, files, addresses, console))
    code = save_ci_files(
        lambda: describe_verification(found, addresses),
        found.exit_code,
        folder=out_dir,
        notify_text=notify_text,
    )
    save_story_page(lambda: make_verify_page(found, addresses), out_dir / PAGE_FILE)
    return code
