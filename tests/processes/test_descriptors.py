from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource
from serve_eval.processes.resources import (ensure_descriptors)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
ensure_descriptors({wanted})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "said"),
    [
        (256, 4096, 64, "256"),
        (256, 4096, 1000, "1100"),
        (
            256,
            1024,
            1000,
            "1000 requests in flight need 1100 open files, but this process may only have 1024",
        ),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(
    soft: int, hard: int, wanted: int, said: str
) -> None:
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
