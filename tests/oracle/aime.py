"""Compare AIME's prompts and scores with lm-eval's own tasks aime24 and aime25.

The problems are real or made-up, the answers made-up.
"""

import importlib
import json
import random
import tempfile
from pathlib import Path

from serve_eval.schema import DataRoots, Message, Response
from serve_eval.scorers.boxed import STRICT
from serve_eval.tasks.aime import ROWS, task
from tests.oracle._suite_flow import Ask, prompts
from tests.oracle.part import SHARED, Compared

FILES = {
    2024: ("test2024.jsonl",),
    2025: ("test2025-I.jsonl", "test2025-II.jsonl"),
}
FORMS = (
    "{0}", " {0}\n", "{0}.", "The answer is {0}", "The answer is ${0}$.", "$n = {0}$", "$1$ or ${0}$", "$${0}$$",  # noqa: E501
    "\\boxed{{{0}}}", "So \\boxed{{{0}}}.", "\\boxed{{ {0} }}", "\\boxed {0}", "\\boxed {0}$ it is", "\\boxed{0}",  # noqa: E501
    "\\boxed{{1}} then \\boxed{{{0}}}", "\\boxed{{{0}}} then \\boxed{{1}}", "\\boxed{{{0}", "\\boxed{{{{{0}}}}}",  # noqa: E501
    "\\boxed{{0{0}}}", "\\boxed{{00{0}}}", "\\boxed{{{0}.0}}", "\\boxed{{{0}.}}", "\\boxed{{-{0}}}", "\\boxed{{+{0}}}",  # noqa: E501
    "\\boxed{{x={0}}}", "\\boxed{{xyz={0}}}", "\\boxed{{x = {0} = y}}", "\\boxed{{{0}^\\circ}}", "\\boxed{{{0}\\%}}",  # noqa: E501
    "\\boxed{{{0}^{{\\circ}}}}", "\\boxed{{\\${0}}}", "\\boxed{{{0}\\text{{ cm}}}}", "\\boxed{{{0}\\text{{cm}}}}",  # noqa: E501
    "\\boxed{{{0}\\text{{ a}}\\text{{ b}}}}", "\\boxed{{\\left{0}\\right}}", "\\boxed{{\\!{0}\\!}}", "\\fbox{{{0}}}",  # noqa: E501
    ".={0}", "..={0}",
    "\\boxed{{\\\\!{0}}}", "\\boxed{{\\frac{{{0}}}{{1}}}}", "\\boxed{{{0}/1}}", "\\boxed{{\\sqrt{{{0}}}}}", "{0}\\frac",  # noqa: E501
    "\\boxed{{\\text{{{0}}}}}", "\\boxed{{\\mathbf{{{0}}}}}", "\\[ {0} \\]", "**{0}**", "\\boxed{{{0},000}}", "no",  # noqa: E501
    "<think>\\boxed{{1}}</think>\\boxed{{{0}}}", "\\boxed{{{0}}} $x$ and $y$", "$ {0}", "{0} $", "", "\\boxed{{}}",  # noqa: E501
)  # fmt: skip
"""Forms of an answer."""
PIECES = (
    "\\boxed{", "\\boxed{{0}}", "\\boxed ", "\\boxed", "\\fbox{", "\\left", "\\right", "\\left(", "\\right)", "^\\circ",  # noqa: E501
    "^{\\circ}", "\\text{ ", "\\text{", "k=", "n = ", "=", "$", "$", "}", "}", "{", "{0}", "{0}", "{0}", "0{0}", "-{0}",  # noqa: E501
    "\\%", "%", "\\!", "\\\\", "\\\\!", "\\$", ",", ".", " .", "{.", " ", "\n", "\\frac", "\\frac12", "tfrac", "\\sqrt",  # noqa: E501
    "/", "1", "\\dfrac{1}{2}", "\\mathrm{", "is", "٣", "\x00",
)  # fmt: skip
DRAWN = 1500
"""Number of made-up answers of each problem, joined from random pieces."""


def compare():
    """Compare both years, on the real problems, or on made-up ones if those are missing."""
    with tempfile.TemporaryDirectory() as folder:
        real = (SHARED / "aime").is_dir()
        root = SHARED if real else Path(folder)
        if not real:
            _write(root / "aime")
        years = {
            year: task(year=year).load(DataRoots(roots=(root,)), ROWS).samples for year in FILES
        }
        theirs = prompts([_ask(year, root / "aime", Path(folder)) for year in FILES])
    asked = Compared(what="prompts of aime, against lm-eval")
    for (year, samples), wanted in zip(years.items(), theirs, strict=True):
        asked.add(f"{year}: problems", len(samples), len(wanted))
        for sample, text in zip(samples, wanted, strict=False):
            asked.add(sample.id, _plain(sample), text)
    if not real:
        asked.notes.append(f"made-up problems: {SHARED / 'aime'} is not there")
    return [asked, _scores(years)]


def _scores(years):
    theirs = importlib.import_module("lm_eval.tasks.aime.utils")
    rng, right = random.Random("aime"), 0
    compared = Compared(what="scores of aime x answers, against lm-eval's process_results")
    for year, samples in years.items():
        ours = task(year=year)
        for sample in samples:
            for text in _answers(sample.target, rng):
                wanted = theirs.process_results({"answer": sample.target}, [text])["exact_match"]
                score = ours.score(sample, Response(text=text, finish_reason="stop"))
                right += wanted
                compared.add(
                    f"{sample.id} {text!r}", (score.value, score.parts[STRICT]), (wanted, wanted)
                )
    compared.notes.append(f"{right} right")
    return compared


def _answers(gold, rng):
    """Yield right and wrong numbers in every form, and texts of random pieces."""
    for number in (gold, str(int(gold) + 1), gold[::-1], gold[:-1]):
        yield from (form.format(number) for form in FORMS)
    for _ in range(DRAWN):
        yield "".join(rng.choices(PIECES, k=rng.randint(1, 8))).replace("{0}", gold)


def _ask(year, root, folder):
    """Return how lm-eval asks a year.

    The problems are in one file, under the task's names.
    """
    rows = [
        json.loads(line) for name in FILES[year] for line in (root / name).read_text().splitlines()
    ]
    kept = [{"problem": row["problem"], "answer": row["answer"]} for row in rows]
    if year == 2024:
        kept = [{name.capitalize(): text for name, text in row.items()} for row in kept]
    split, file = "train" if year == 2024 else "test", folder / f"{year}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return Ask(config=f"aime/aime{year % 100}.yaml", files={split: str(file)})


def _plain(sample):
    (turn,) = sample.prompt
    return turn.text if isinstance(turn, Message) else turn


def _write(folder):
    """Write made-up problems in the layout of the real ones."""
    rng = random.Random("aime problems")
    folder.mkdir()
    for names in FILES.values():
        for name in names:
            count = ROWS // len(names)
            rows = [
                {"problem": f"Find ${i}+x$ for $x={i}$.", "answer": f"{rng.randrange(1000)}"}
                for i in range(count)
            ]
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
