"""Texts that break pages, and a run folder in which every text is one of them."""

from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    Facts,
    PageContent,
    PictureSection,
    TextLines,
)
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.pictures.picture import Picture, RulerRow, make_ruler
from serve_eval.report.samples.known import KnownTask
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import (
    Attempt,
    Failure,
    FailureKind,
    Message,
    Metric,
    Outcome,
    Response,
    Sample,
    ToolCall,
)
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.prompts import write_prompts
from serve_eval.storage.scores import ScoreRecord, write_scores

MARKUP = "</script></title><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>\"'`"
HOSTILE = {
    "markup": MARKUP,
    "attribute": '" onmouseover="window.hit = 3" x=\'',
    "template": "{{ 7 * 7 }}{% raw %}</pre><!--",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "direction": "user\u202egnp.exe\u2066 \u200f",
    "nul": "a\x00b\x08c\u2028d",
    "surrogate": "half \ud83d of a pair \udc00",
}
LONG = "0123456789" * 1_000_000


def make_task(folder, texts):
    """Write a run folder with a sample per text, each in every place, and return its task."""
    name = "task <b>"
    write = [text.encode(errors="backslashreplace").decode() for text in texts]
    samples_file(folder, name).parent.mkdir(parents=True)
    (folder / "scores").mkdir()
    once = Attempt(start_s=1.0, end_s=2.0, failure=None, status=None, request_id="")
    lost = Attempt(start_s=0.5, end_s=1.0, failure=FailureKind.TIMEOUT, status=None, request_id="")
    with Journal(samples_file(folder, name)) as journal, write_scores(folder, name) as scores:
        for i, text in enumerate(write):
            response = Response(
                text=f"{text} is {text}, 42",
                finish_reason=text[:100],
                reasoning=text,
                refusal=text,
                tool_calls=(ToolCall(text, text),),
                attempts=(lost, once),
            )
            journal.append(Record(id=f"{i} {text[:100]}", response=response))
            scores.write(
                ScoreRecord(
                    id=f"{i} {text[:100]}",
                    outcome=Outcome.WRONG,
                    value=0.0,
                    answer=text if i % 2 else "42",
                    target=text,
                    parts={text[:100]: 0.0},
                    mode=text[:100],
                )
            )
        failure = Failure(kind=FailureKind.HTTP_ERROR, message=write[0], attempts=(lost, lost))
        journal.append(Record(id="failed", failure=failure))
    prompts = [
        Sample(
            id=f"{i} {text[:100]}",
            prompt=(Message(role=text[:100], content=text), Message(role="user", content="?")),
            target="",
        )
        for i, text in enumerate(write)
    ]
    write_prompts(folder, name, prompts, str, texts=True)
    fields = {
        f"{write[0]}\x1b[1m\u202e": {
            f"{i} {text[:100]}": text[:100] for i, text in enumerate(write)
        }
    }
    return PageTask(
        name=name,
        arms={"": SampleSource(run=folder, task=name)},
        metric=Metric(),
        know=lambda _: KnownTask(fields=fields, body={"model": write[0], "max_tokens": 1}),
        url=f"http://host/{write[0]}",
        key="MY_KEY",
    )


def make_content(text, task=None):
    """Return a page with a text in every place."""
    fact = Fact(label=text, text=text, href=f"#{text}")
    cell = DataCell(text=text, href=f"#{text}", place=0.5, interval=(0.2, 0.7), mark=0.5)
    samples = None if task is None else show_samples(SampleData([task]))
    return PageContent(
        kind=text,
        title=text,
        heading=text,
        state="fail",
        badge=text,
        headline=text,
        rows=[fact],
        sections=[
            Facts(title=text, rows=[fact], closed=True),
            DataTable(
                title=text,
                columns=[DataColumn(name=text, note=text)],
                rows=[[cell]],
                caption=text,
            ),
            PictureSection(
                title=text,
                pictures=[
                    Picture(
                        title=text,
                        description=text,
                        ruler=make_ruler([RulerRow(label=text, text=text, value=0.5)]),
                    )
                ],
            ),
            TextLines(title=text, lines=[text]),
            TextLines(title=text, lines=[text], preformatted=True),
            *([] if samples is None else [samples]),
        ],
        foot=text,
    )
