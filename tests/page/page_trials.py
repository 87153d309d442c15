"""Print the size of large pages and the time to their first view: python -m tests.page.page_trials.

The questions are those of MMLU if a folder with its test set is given, else made ones of the same
length. Chromium opens the file from disk; the time ends when the first rows are drawn.
"""

import csv
import random
import shutil
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from serve_eval.report.page.content import PageContent
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.writer import save_page
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import Attempt, Metric, Outcome, Response, Sample, Usage
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.prompts import write_prompts
from serve_eval.storage.scores import ScoreRecord, write_scores

ROWS = (1_319, 14_042, 100_000)
LONG = 2_000
"""Characters of the long answers of the last page."""


def read_questions(folder):
    """Yield a subject and a question, without end."""
    files = [] if folder is None else sorted(folder.glob("*_test.csv"))
    if not files:
        words = [f"word{i}" for i in range(4_000)]
        chosen = random.Random(1)
        for i in cycle(range(57)):
            yield f"subject {i}", " ".join(chosen.choices(words, k=70))
    for file in cycle(files):
        with file.open(newline="") as rows:
            for question, *choices, _ in csv.reader(rows):
                said = "\n".join([question, *map(". ".join, zip("ABCD", choices, strict=True))])
                yield file.stem.removesuffix("_test"), said


def make_folder(folder, rows, questions, answer):
    """Write a run folder with five examples before each question; answers have a length."""
    chosen, samples, heads = random.Random(2), list[Sample](), dict[str, str]()
    asked = list(islice(read_questions(questions), rows))
    for i, (subject, question) in enumerate(sorted(asked, key=lambda one: one[0])):
        head = heads.setdefault(subject, f"Questions on {subject}.\n\n" + 5 * f"{question} A\n\n")
        number = f"{subject}-{i}"
        samples.append(Sample(id=number, prompt=f"{head}{question}\nAnswer:", target="A"))
    samples_file(folder, "mmlu").parent.mkdir(parents=True)
    (folder / "scores").mkdir()
    write_prompts(folder, "mmlu", samples, str, texts=True)
    with Journal(samples_file(folder, "mmlu")) as journal, write_scores(folder, "mmlu") as scores:
        for i, sample in enumerate(samples):
            letter = chosen.choice("ABCD")
            text = " ".join(str(chosen.random()) for _ in range(answer // 19)) + f" {letter}"
            start = 1.7e9 + i / 100
            once = Attempt(
                start_s=start, end_s=start + 1, failure=None, status=None, request_id=str(i)
            )
            response = Response(
                text=text,
                finish_reason="stop",
                usage=Usage(prompt_tokens=700 + i % 90, completion_tokens=2 + answer // 4),
                latency_s=chosen.random(),
                attempts=(once,),
            )
            journal.append(Record(id=sample.id, response=response))
            right = letter == "A"
            scores.write(
                ScoreRecord(
                    id=sample.id,
                    outcome=Outcome.CORRECT if right else Outcome.WRONG,
                    value=float(right),
                    answer=letter,
                    target="A",
                )
            )
    return PageTask(name="mmlu", arms={"": SampleSource(run=folder, task="mmlu")}, metric=Metric())


def main(questions):
    """Print a line per page."""
    from playwright.sync_api import sync_playwright

    print(f"{'samples':>8} {'answers':>8} {'written in':>11} {'size':>9} {'first view':>11}")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for rows, answer in (*((one, 0) for one in ROWS), (14_042, LONG)):
            folder = Path(name) / f"{rows}-{answer}"
            task, file = make_folder(folder, rows, questions, answer), folder / "report.html"
            begun = time.perf_counter()
            section = show_samples(SampleData([task]))
            assert section is not None
            page = PageContent(
                kind="run",
                title="trial",
                heading="",
                state="none",
                badge="",
                headline="",
                sections=[section],
            )
            save_page(page, file)
            written, times = time.perf_counter() - begun, []
            for _ in range(3):
                tab = browser.new_page()
                begun = time.perf_counter()
                tab.goto(file.as_uri())
                tab.wait_for_selector("tr[data-place]", timeout=120_000)
                times.append(time.perf_counter() - begun)
                tab.close()
            size = f"{file.stat().st_size / 1e6:.2f} MB"
            first = f"{sorted(times)[1]:.2f} s"
            print(
                f"{rows:>8,} {answer or 2:>8,} {written:>9.2f} s {size:>9} {first:>11}", flush=True
            )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
