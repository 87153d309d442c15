"""Read reference files: the registered values that runs are compared with.

A file `<task>.yaml` maps a model name to a list of entries. An entry has up to five spec keys,
which must equal the run's accuracy specification, one value under the metric's name, and optionally
overrides and provenance. The first matching entry is used. Nothing is ignored: an unknown key or an
entry that can never match is an error. `acceptance_length.yaml` is different: it maps a test's name
to its reference and its least acceptable length.
"""

from __future__ import annotations

from serve_eval.verdicts.references.lookup import (
    ACCEPTANCE_LENGTH,
    AcceptanceLength,
    check,
    describe_difference,
    describe_launched,
    describe_reference,
    describe_taken,
    explain_missing,
    find,
    find_acceptance_length,
    list_launched,
    load_acceptance_length,
)
from serve_eval.verdicts.references.reference_file import (
    IMPORTED,
    METRICS,
    SPEC_KEYS,
    Entries,
    find_shipped_dir,
    list_files,
    load,
    parse,
    range_problems,
    spec_text,
    value_key,
)

__all__ = [
    "ACCEPTANCE_LENGTH",
    "IMPORTED",
    "METRICS",
    "SPEC_KEYS",
    "AcceptanceLength",
    "Entries",
    "check",
    "describe_difference",
    "describe_launched",
    "describe_reference",
    "describe_taken",
    "explain_missing",
    "find",
    "find_acceptance_length",
    "find_shipped_dir",
    "list_files",
    "list_launched",
    "load",
    "load_acceptance_length",
    "parse",
    "range_problems",
    "spec_text",
    "value_key",
]
