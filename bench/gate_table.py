"""Read, write and apply the table of the gate, bench/gate.yaml, and guard its yardstick."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from gate_measure import Figures
from gate_rows import RowOfGate

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("gate.yaml")
TOLERANCE = 0.25
YARDSTICK = (
    *("answers", "cores", "counts", "gate_measure", "gate_rows", "gate_run", "gate_scores"),
    *("one_client", "processes", "release", "server", "serving", "workload", "yardstick"),
    *("clients/bare_aiohttp", "include/tasks/sums"),
)
"""The modules of bench/ on which every figure depends."""
PRODUCT = ("serve_eval/", "launchers/")
_HEAD = """\
# The figures that bench/gate.py compares with, as ratios to the yardstick loop and to the bare
# client of the same run; one figure where the machine does not matter. `value` is that of the
# machine that wrote them. make bench-gate UPDATE=1 REASON="why" writes this file.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: the value when it was written, and its ratios."""

    value: float
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The committed figures by the name of the row, the yardstick's checksum, and the reason."""

    yardstick: str
    reason: str
    rows: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its value, the committed value on this machine, and its ratios to that.

    The ratios are those by the yardstick loop and by the bare client.
    """

    row: RowOfGate
    value: float
    committed: float | None
    ratios: tuple[float, ...]
    verdict: str

    @property
    def failed(self) -> bool:
        """True if the row makes the gate fail."""
        return self.verdict in ("MORE", "NOT IN THE TABLE")


def load(path: Path | None = None) -> Table:
    """Read the table."""
    told = yaml.safe_load((path or TABLE).read_text("utf-8"))
    rows = {name: Entry(of["value"], tuple(of["ratios"])) for name, of in told["rows"].items()}
    return Table(told["yardstick"], told["reason"], rows)


def save(
    rows: Sequence[RowOfGate], figures: Figures, reason: str, path: Path | None = None
) -> None:
    """Write the table with the figures of this run."""
    told = {
        "yardstick": checksum(),
        "reason": reason,
        "rows": {
            row.name: {
                "value": _short(row.value(figures)),
                "unit": row.unit,
                "ratios": [_short(ratio) for ratio in row.ratios(figures)],
            }
            for row in rows
        },
    }
    (path or TABLE).write_text(_HEAD + yaml.safe_dump(told, sort_keys=False, width=120), "utf-8")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def checksum() -> str:
    """Return the checksum of the files of the yardstick."""
    found = hashlib.sha256()
    for name in YARDSTICK:
        found.update(name.encode() + b"\0" + (ROOT / f"bench/{name}.py").read_bytes())
    return found.hexdigest()[:16]


def judge(row: RowOfGate, figures: Figures, entry: Entry | None) -> Judged:
    """Compare a row with its entry of the table.

    The smaller of the two ratios counts: a change of the product raises both, and a machine on
    which only the yardstick or only the bare client is fast raises one.
    """
    value, ratios = row.value(figures), row.ratios(figures)
    if entry is None or len(entry.ratios) != len(ratios):
        return Judged(row, value, None, (), "NOT IN THE TABLE")
    units = [figures[unit] for unit in row.units] if row.units else [1.0]
    usual = [ratio * unit for ratio, unit in zip(entry.ratios, units, strict=True)]
    committed = max(usual)
    times = tuple(value / one if one else 1.0 for one in usual)
    tolerance = 0.0 if row.exact else TOLERANCE
    if value > max((1 + tolerance) * committed, committed + row.slack):
        return Judged(row, value, committed, times, "MORE")
    fallen = value < min((1 - tolerance) * min(usual), min(usual) - row.slack)
    return Judged(row, value, committed, times, "less" if fallen else "as usual")


def misuses(base: str | None) -> Iterator[str]:
    """Yield what is wrong with the yardstick, with the changes since `base` if it is given."""
    if load().yardstick != checksum():
        yield (
            "the yardstick has changed and the table has not been renewed: what measures the"
            " product stands in bench/gate_table.py, YARDSTICK"
        )
    if base:
        yield from _mixed_changes(base)


def _mixed_changes(base: str) -> Iterator[str]:
    changes = {
        commit: _git("show", "--name-only", "--format=", commit)
        for commit in _git("rev-list", "--no-merges", f"{base}..HEAD")
    }
    changes["what is not committed"] = _git("diff", "--name-only", "HEAD")
    yardstick = {f"bench/{name}.py" for name in YARDSTICK}
    for change, files in changes.items():
        touched = sorted(yardstick.intersection(files))
        product = [file for file in files if file.startswith(PRODUCT)]
        if touched and product:
            yield (
                f"one change ({change[:21]}) touches the yardstick ({', '.join(touched)}) and the"
                f" product ({product[0]}): commit the yardstick alone, with a renewed table"
            )
    before = "\n".join(_git("show", f"{base}:bench/gate.yaml", check=False))
    now = TABLE.read_text("utf-8")
    old, new = yaml.safe_load(before), yaml.safe_load(now)
    if old and old["rows"] != new["rows"] and old["reason"] == new["reason"]:
        yield f"the table has changed since {base} and gives no new reason"


def _git(*arguments: str, check: bool = True) -> list[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout.splitlines()
