"""Write the files of today's version into tests/released/VERSION: a plan, its run, a reference.

Run it once for each version that is released: `python -m tests.released`. A folder that exists is
what that version wrote, so it is never written again.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import serve_eval

HERE = Path(__file__).resolve().parent
PLAN = """\
# A plan as serve-eval {version} reads it.
model: embedded
launcher: {{name: embedded}}
tasks: [{{word_problems: {{num_samples: 20}}}}]
limits: {{order: natural}}
allow_missing_reference: true
output_dir: run
"""
LEFT_OUT = (".html", ".lock", "lock", ".log")
"""Files that no later version has to read."""


def write(folder):
    """Write the files below an empty folder, with what names this machine replaced."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        (root / "plan.yaml").write_text(PLAN.format(version=serve_eval.__version__))
        _run(root, "run", "plan.yaml", "--no-reference", exits=3)
        _run(root, "references", "register", "run", "--references-dir", "references", exits=0)
        for file in sorted(root.rglob("*")):
            if file.is_file() and not file.name.endswith(LEFT_OUT):
                target = folder / file.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_hide(file.read_text(), root))


def _run(root, *words, exits):
    done = subprocess.run(
        [sys.executable, "-m", "serve_eval", *words],
        cwd=root,
        env={**os.environ, "SERVE_EVAL_NO_PICTURES": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != exits:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _hide(text, root):
    text = text.replace(str(root), "/runs").replace(platform.platform(), "Linux")
    return re.sub(re.escape(platform.node()), "host", text) if len(platform.node()) > 4 else text


if __name__ == "__main__":
    target = HERE / serve_eval.__version__
    if target.exists():
        sys.exit(f"{target} exists: it holds what was released")
    write(target)
