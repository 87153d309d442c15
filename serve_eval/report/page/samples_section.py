"""Make the section of a page with all samples, in a size that a browser opens at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.report.page.content import ScriptData
from serve_eval.report.page.packing import compress, encode, to_json
from serve_eval.report.page.sample_data import SampleData

LIMITS: Sequence[tuple[int | None, int | None]] = (
    (None, None),
    (16_000, None),
    (4_000, 64_000),
    (1_000, 16_000),
    (400, 2_000),
    (100, 400),
)
"""Most characters of an answer and of a prompt, tried one after the other."""
SOME = (
    "Each outcome has a share of the places, what went wrong the largest; within an outcome, chance"
    " decided. serve-eval show prints the others, and --set limits.page_samples=N puts more"
    " of them here."
)
"""The caption of the table on a page with only some of the samples."""
MOST_BYTES, MOST_UNPACKED = 10_000_000, 100_000_000
"""Compressed and whole size of the data from which texts are shortened, in bytes."""
SCRIPTS = (
    "dom.js",
    "samples.js",
    "filters.js",
    "controls.js",
    "sample_table.js",
    "differences.js",
    "sample_view.js",
    "export.js",
    "keys.js",
    "start.js",
)
"""Scripts of the samples, in their order."""


def show_samples(data: SampleData, *, most_bytes: int = MOST_BYTES) -> ScriptData | None:
    """Return the section, or None if no sample was sent.

    If the data is larger than `most_bytes`, texts lose their middle, and the page says so.
    """
    if not len(data):
        return None
    some = len(data) < data.total
    packed = b""
    for limits in _choose_limits(data):
        whole = to_json(data.to_json(*limits))
        if len(whole) > MOST_UNPACKED and limits != LIMITS[-1]:
            continue
        if len(packed := compress(whole)) <= most_bytes:
            break
    return ScriptData(
        title=f"Samples: {len(data):,} of {data.total:,}" if some else "Samples",
        name="samples",
        value=encode(packed),
        scripts=SCRIPTS,
        caption=SOME if some else "",
        note="The table of samples needs JavaScript. serve-eval show prints the same.",
    )


def _choose_limits(data: SampleData) -> Iterator[tuple[int | None, int | None]]:
    """Yield the limits that shorten a text, after those that keep all; always the last ones."""
    yield LIMITS[0]
    longest = data.measure_longest()
    for limits in LIMITS[1:]:
        cuts = (
            most is not None and most < size for most, size in zip(limits, longest, strict=True)
        )
        if limits == LIMITS[-1] or any(cuts):
            yield limits
