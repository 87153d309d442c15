"""Run `serve-eval setup schema`: print the JSON Schema of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_eval.cli._options import command

KINDS = ("plan", "suite", "report", "journal", "events", "document", "listing")
EXAMPLES = (
    ("Let an editor check plans:", "serve-eval setup schema plan > plan.schema.json"),
    ("See what a program finds in report.json:", "serve-eval setup schema report"),
)


@command(examples=EXAMPLES)
def setup_schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
) -> None:
    """Print the JSON Schema of plans, suites, report.json, journals, events or --json.

    docs/extending.md says what is stable, and what an editor needs.
    """
    from serve_eval.cli._streams import emit

    emit(format_schema(kind))


def format_schema(kind: str) -> str:
    """Return the text of a schema, as the files of docs/schemas hold it.

    Raises PlanError for an unknown kind.
    """
    import json

    from serve_eval.errors import PlanError
    from serve_eval.plan.plan_file import describe_plan
    from serve_eval.plugins.registry import nearest
    from serve_eval.report.document import describe_document_form
    from serve_eval.report.document.listing import describe_listing_form
    from serve_eval.storage.report_file import describe_journal, describe_report_file
    from serve_eval.workflows.events import describe_events
    from serve_eval.workflows.suite.suite_form import describe_suite

    functions = (
        describe_plan,
        describe_suite,
        describe_report_file,
        describe_journal,
        describe_events,
        describe_document_form,
        describe_listing_form,
    )
    known = dict(zip(KINDS, functions, strict=True))
    if kind not in known:
        raise PlanError(f"no schema of {kind!r}.{nearest(kind, KINDS)}")
    return f"{json.dumps(known[kind](), indent=1, ensure_ascii=False)}\n"
