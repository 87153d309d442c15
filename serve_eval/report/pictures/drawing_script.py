"""Draw specifications of Vega-Lite as SVG, in a process of its own: `drawing.py` starts it.

It imports nothing of serve-eval. A line of standard input is a specification as JSON; the line of
standard output after it is its SVG as a JSON string, or null if it cannot be drawn.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Draw each line as soon as it is read, so that a death loses only what comes after it."""
    import vl_convert

    for line in sys.stdin.buffer:
        try:
            drawn = vl_convert.vegalite_to_svg(line.decode(), allowed_base_urls=[])
        except Exception:  # one picture that cannot be drawn leaves the others
            drawn = None
        sys.stdout.write(f"{json.dumps(drawn)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
