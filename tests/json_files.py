"""Read JSON files in tests, also in scripts that run where serve-eval is not installed."""

import json
from pathlib import Path


def read_json(file):
    """Return the content of a file that a command wrote."""
    return json.loads(Path(file).read_bytes())
