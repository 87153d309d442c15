"""Measure memory and time of a run of a million samples.

Run `python bench/million.py [SAMPLES [IN_FLIGHT]]`. The server answers immediately. The tool runs
as for users, in its own process, with journal, scores, alarm, progress, report and page; only the
samples are generated on access. Flat arrays of scores and outcomes grow with the samples, because
answers can be compared pairwise later.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from long_run import IN_FLIGHT, Peaks, long_run
from serving import Mode, Server

SAMPLES = 1_000_000
BYTES_PER_SAMPLE, PEAK_MB = 100, 220
"""Goals: growth of a further sample, including the report and the page at the end, and the peak of
a run of SAMPLES. An answer alone has ten times that growth.
"""
MARKS = (10_000, 100_000, 1_000_000)


def main() -> None:
    given = [int(number) for number in sys.argv[1:]]
    count, in_flight = (*given, *(SAMPLES, IN_FLIGHT)[len(given) :])
    with (
        Server(Mode()) as server,
        tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as folder,
    ):
        peaks = Peaks(server, tuple(mark for mark in MARKS if mark <= count))
        try:
            done = long_run(
                server, count, Path(folder) / "run", in_flight=in_flight, started=peaks.watch
            )
        finally:
            peaks.end()
    at = "".join(f"{peak:.0f} MB after {mark}, " for mark, peak in peaks.peaks.items())
    print(
        f"\n  {count} generated samples, {in_flight} in flight, at once: {at}{done.peak_rss_mb:.0f}"
        " MB in all"
    )
    print(
        f"  {done.wall_s:.0f} s, {count / done.wall_s:.0f} samples/s, "
        f"{1000 * done.cpu_s / count:.4f} ms of CPU per sample"
    )
    if count >= SAMPLES:
        said = "reached" if done.peak_rss_mb <= PEAK_MB else "MISSED"
        print(f"  {said:13} peak memory: {done.peak_rss_mb:.0f} MB (at most {PEAK_MB})")
    if MARKS[0] in peaks.peaks and count > MARKS[0]:
        growth = (done.peak_rss_mb - peaks.peaks[MARKS[0]]) * 2**20 / (count - MARKS[0])
        said = "reached" if growth <= BYTES_PER_SAMPLE else "MISSED"
        print(
            f"  {said:13} growth per further sample: {growth:.0f} bytes (at most"
            f" {BYTES_PER_SAMPLE})"
        )


if __name__ == "__main__":
    main()
