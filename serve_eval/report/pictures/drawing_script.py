"""Draw specifications of Vega-Lite as SVG, in a process of its own: `drawing_process.py` starts it.

It imports nothing of serve-eval. A line of standard input is a specification as JSON; the line of
standard output after it is its SVG as a JSON string, or null if it cannot be drawn. With --ahead,
it loads V8 before it reads, at a lower priority than the requests that are being timed.
"""

from __future__ import annotations

import json
import os
import sys

_FIRST = {
    "data": {"values": [{"a": 1.0}]},
    "mark": "bar",
    "encoding": {"x": {"field": "a", "type": "quantitative"}},
}
"""A picture with an axis: drawing it loads V8, the library and the fonts."""


def main() -> None:
    """Draw each line as soon as it is read, so that a death loses only what comes after it."""
    ahead = "--ahead" in sys.argv
    if ahead:
        os.nice(5)
    import vl_convert

    if ahead:
        vl_convert.vegalite_to_svg(_FIRST, allowed_base_urls=[])
    for line in sys.stdin.buffer:
        try:
            drawn = vl_convert.vegalite_to_svg(line.decode(), allowed_base_urls=[])
        except Exception:  # one picture that cannot be drawn leaves the others
            drawn = None
        sys.stdout.write(f"{json.dumps(drawn)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
