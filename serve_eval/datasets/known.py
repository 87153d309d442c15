"""Read the known data sets from known.json: their sources, licences and checksums.

A checksum is listed if it was computed from the source's own files at the given revision. The
others are recorded at the first fetch. Every run reads the table, so it is JSON: to import a reader
of YAML takes 40 ms.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.datasets.source import Source

GPQA_PASSWORD = b"deserted-untie-orchid"
"""Published by the authors next to the archive. It only keeps the questions out of crawled text."""

KNOWN = msgspec.json.decode(
    Path(__file__).with_name("known.json").read_bytes(), type=dict[str, Source]
)
"""By the name that `serve-eval data` uses."""
