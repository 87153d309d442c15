"""Serve flavours of models that think, and ask them by each further command."""

import asyncio
import json
import re
import tempfile
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from serve_eval.client.connection import connect
from serve_eval.client.preflight import PING
from serve_eval.evaluation.capabilities.features import TOOL, probe_guided_decoding, tools
from serve_eval.evaluation.capabilities.probe_request import WORD
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.generation import ThoughtsForm, ToolFaults
from serve_eval.launchers._standin.model import EOS, MadeUpModel, encode, prompt_of
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig
from serve_eval.plan.resolve import resolve_address
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Endpoint, Spec
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.made_results import make_prepared
from tests.workflows.invariants.faulty_servers import code_in
from tests.workflows.tools.on_standin import write_tool_answers

SHORT, LONG = 60, 600
"""Words of short and of long thoughts, of 1.2 tokens each."""
PARSER = {"reasoning_parser": "deepseek-r1"}
NONE = {}
FLAVOURS = {
    "never": (NONE, NONE),
    "field": (PARSER, {"thinks": "always", "thoughts": ThoughtsForm(words=SHORT)}),
    "inline": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(words=SHORT)}),
    "opened": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(opened=True, words=SHORT)}),
    "field_long": (PARSER, {"thinks": "always", "thoughts": ThoughtsForm(words=LONG)}),
    "inline_long": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(words=LONG)}),
    "opened_long": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(opened=True, words=LONG)}),
    "hybrid_field": (PARSER, {"thinks": "as_asked", "thoughts": ThoughtsForm(words=LONG)}),
    "hybrid_opened": (
        NONE,
        {"thinks": "as_asked", "thoughts": ThoughtsForm(opened=True, words=LONG)},
    ),
}
"""By name: the arguments of the model, and the faults of the server, which are its thoughts.
`never` is the control."""


@asynccontextmanager
async def serve_flavour(name, model=None, *, tool_parser="qwen3", **faults):
    """Serve a flavour with further `faults`, and yield its base URL."""
    args, thoughts = FLAVOURS[name]
    args = {**args, "guided_decoding_backend": "xgrammar"}
    config = WorkerConfig(model="M", host="127.0.0.1", port=0, args=args, tool_parser=tool_parser)
    brain = model or MadeUpModel(skilled=True)
    app = create(config, brain, Faults(**{**thoughts, **faults}), "main")
    async with serve_app(app) as url:
        yield url


@contextmanager
def flavour_in_thread(name, model=None, **more):
    """Serve a flavour in another thread, since commands want the main one, and yield its URL."""
    found = Future()

    async def main():
        async with serve_flavour(name, model, **more) as url:
            ended = asyncio.Event()
            found.set_result((url, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    url, loop, ended = found.result(timeout=30)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


UNJUDGED = "not judged"
NOT_COMPARABLE, NO_ANSWERS = 3, 5
BROKEN = {"corrupt_after": 0}
"""The fault of a damaged server: its answers are wrong."""
ENOUGH, FEW = 4000, 40
"""Token limits with room for all thoughts, and within the thoughts of most flavours."""
OTHER_FORM = {
    "field": "opened",
    "inline": "field",
    "opened": "inline",
    "field_long": "opened_long",
    "inline_long": "field_long",
    "opened_long": "inline_long",
    "hybrid_field": "hybrid_opened",
    "hybrid_opened": "hybrid_field",
}
"""Replicas of one model that show the same thoughts in another form, since one lacks a parser."""
TOOL_KINDS = ("auto", "no_tool", "required", "none", "json_schema")


def write_sums(folder, max_tokens, count=24):
    """Write a file of cases whose answers a skilled model knows."""
    lines = ["sums:", "  scorer: words", f"  sampling: {{max_tokens: {max_tokens}}}"]
    lines += ["  prompt: What is ${a} + ${b}?", "  cases:"]
    for i in range(count):
        a, b = 11 + i, 30 + 2 * i
        lines.append(
            f"    - {{case: c{i}, input: {{a: {a}, b: {b}}}, expected: {{answer: '{a + b}'}}}}"
        )
    file = folder / "sums.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def _limit_of(number, damaged):
    """Return the token limit of a run: every other sound one ends within thoughts."""
    return FEW if number % 2 and not damaged else ENOUGH


def _tell(ran, *, unjudged=(NOT_COMPARABLE, NO_ANSWERS)):
    if ran.returncode in unjudged:
        return UNJUDGED
    return f"exit {ran.returncode}: {(ran.stdout + ran.stderr)[:400]}" if ran.returncode else ""


def attribute_once(name, damaged, number):
    """Return what attribute says of two servers of one model, if it accuses one.

    Every third pair shows its thoughts in two forms.
    """
    faults = {**BROKEN, "seed": number} if damaged else {}
    form = name if number % 3 else OTHER_FORM[name]
    with (
        tempfile.TemporaryDirectory() as text,
        flavour_in_thread(name) as good,
        flavour_in_thread(form, **faults) as other,
    ):
        folder = Path(text)
        cases = write_sums(folder, _limit_of(number, damaged))
        words = [
            "--model",
            "M",
            "--no-reference",
            "-o",
            folder / "run",
            "--set",
            f"seed={number!s}",
        ]
        serve_eval(f"run --base-url {good} --cases {cases}", *words)
        workers = [word for url in (good, other) for word in ("--worker", url)]
        ran = serve_eval(f"check workers {folder}/run --samples 20", *workers)
    return _tell(ran)


def invariants_once(name, damaged, number):
    """Return what the invariants say of a server; a damaged one loses the ends of streams."""
    faults = {"tools": ToolFaults(drops_last_piece=True)} if damaged else {}
    with tempfile.TemporaryDirectory() as text, flavour_in_thread(name, **faults) as url:
        folder = Path(text)
        cases = write_sums(folder, _limit_of(number, damaged))
        words = f"--model M --cases {cases} --set invariants.chunk_tokens=0 --concurrency 4"
        ran = serve_eval(f"check invariants {url} --limit 20 -o {folder}/out {words}")
    return _tell(ran)


class CopyingModel(MadeUpModel):
    """Repeats the code of a canary; a leaking one that of the request before."""

    def __init__(self, *, leaks=False):
        super().__init__(skilled=True)
        self._leaks, self._before = leaks, ""

    def answer(self, ids, **drawn):
        prompt = prompt_of(ids)
        text = prompt if isinstance(prompt, str) else prompt[-1].text
        if (code := code_in(text)) is None:
            return super().answer(ids, **drawn)
        said, self._before = (self._before if self._leaks else code), code
        return [*encode(f"The code is {said}."), EOS]


def canaries_once(name, damaged, number):
    """Return what the canaries say of a server; a damaged one answers with another's code."""
    model = CopyingModel(leaks=damaged)
    with tempfile.TemporaryDirectory() as text, flavour_in_thread(name, model) as url:
        words = "--model M --canaries --limit 42 --concurrency 6"
        ran = serve_eval(f"check invariants {url} {words} -o", Path(text) / "out")
    return _tell(ran)


def tools_once(name, damaged, number):
    """Return what the check of tool calls says; a damaged parser leaves calls in the text."""
    faults = {"tools": ToolFaults(leaves_markup=True)} if damaged else {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = MadeUpModel(
            write_tool_answers(folder / "answers.jsonl", TOOL_KINDS, 0.0, number), skilled=True
        )
        with flavour_in_thread(name, model, tool_parser="qwen3", **faults) as url:
            words = [
                "--model",
                "M",
                "--set",
                f"tools.kinds={','.join(TOOL_KINDS)}",
                "--concurrency",
                "1,4",
            ]
            words += ["--limit", "120"]
            if number % 2 and not damaged:
                words += ["--set", f"tool_calls.max_tokens={FEW}"]
            ran = serve_eval(f"check tools {url} -o {folder}/out", *words)
    return _tell(ran)


class AbleModel(MadeUpModel):
    """Follows the schema and calls the tool of the probes, unless it is `unable`."""

    def __init__(self, *, unable=False):
        super().__init__(skilled=True)
        self._unable = unable

    def answer(self, ids, **drawn):
        prompt = prompt_of(ids)
        text = prompt if isinstance(prompt, str) else prompt[-1].text
        if TOOL in text:
            said = "A violet is a flower, {so} I use no write_down."
            if not self._unable:
                call = {"name": TOOL, "arguments": {"word": WORD}}
                said = json.dumps({"tool_calls": [call]})
            return [*encode(said), EOS]
        if PING in text:
            return [*encode("2" if self._unable else json.dumps({"word": WORD})), EOS]
        return super().answer(ids, **drawn)


def probes_once(name, damaged, number):
    """Return the abilities that the probes of a run call missing."""
    task = build_task(Spec(name="tool_calls", options={"kinds": ["json_schema"]}))
    prepared = make_prepared(task, task.load(DataRoots(), 4), spec=Spec(name="tool_calls"))

    async def main():
        model = AbleModel(unable=damaged)
        async with serve_flavour(name, model, tool_parser="qwen3") as url:
            plan = resolve_address({"base_url": url}, {})
            base_url = str(plan.launcher.options["base_url"])
            async with connect(plan, Endpoint(base_url=base_url, model="M"), {}) as client:
                return [await probe_guided_decoding(client, prepared), await tools(client)]

    found = asyncio.run(main())
    lacking = "; ".join(f"{one.need}: {one.seen}" for one in found if one.works is False)
    unknown = any(one.works is None for one in found)
    return lacking or (UNJUDGED if unknown else "")


JSON_CASES = """
copies:
  scorer: json_schema
  sampling: {max_tokens: MOST}
  prompt: 'Repeat exactly: {"n": ${n}}'
  cases:
"""


def load_once(name, damaged, number):
    """Return what the loads say of a server; a damaged one loses a sign of JSON at eight."""
    faults = {"latency_s": 0.02}
    if damaged:
        faults["tools"] = ToolFaults(breaks_json_above=4)
    with tempfile.TemporaryDirectory() as text, flavour_in_thread(name, **faults) as url:
        folder = Path(text)
        cases = JSON_CASES.replace("MOST", str(_limit_of(number, damaged)))
        cases += "".join(
            f"    - {{case: c{i}, input: {{n: {i}}}, expected: {{equals: {{n: {i}}}}}}}\n"
            for i in range(40)
        )
        (folder / "cases.yaml").write_text(cases)
        words = f"--model M --cases {folder}/cases.yaml --concurrency 1,8"
        ran = serve_eval(f"check load {url} -o {folder}/out {words}")
    return _tell(ran)


JUDGED = """
judged:
  scorer: {judge: {judges: [{model: M, base_url: "URL", sampling: {max_tokens: MOST}}]}}
  prompt: Describe ${n}.
  cases:
"""


class JudgingModel(MadeUpModel):
    """Finds every answer correct; a damaged one writes nothing of a verdict."""

    def __init__(self, *, broken=False):
        super().__init__(skilled=True)
        self._broken = broken

    def answer(self, ids, **drawn):
        if self._broken:
            return super().answer(ids, wrong=True)
        return [*encode("It fits.\nVerdict: yes"), EOS]


def judge_once(name, damaged, number):
    """Return what a run says whose judge thinks: wrong answers, or judgements that are missing."""
    with (
        tempfile.TemporaryDirectory() as text,
        flavour_in_thread("never") as asked,
        flavour_in_thread(name, JudgingModel(broken=damaged)) as judge,
    ):
        folder = Path(text)
        most = _limit_of(number, damaged)
        cases = JUDGED.replace("URL", judge).replace("MOST", str(most))
        cases += "".join(
            f"    - {{case: c{i}, input: {{n: 'thing {i}'}}, expected: {{answer: 'a thing'}}}}\n"
            for i in range(12)
        )
        (folder / "cases.yaml").write_text(cases)
        words = f"--model M --no-reference -o {folder}/out"
        ran = serve_eval(f"run --base-url {asked} --cases {folder}/cases.yaml {words}")
        file = folder / "out/report.json"
        if not file.exists():
            return f"exit {ran.returncode}: {(ran.stdout + ran.stderr)[:400]}"
        result = read_json(file)["tasks"][0]["result"]
    outcomes = {name: count for name, count in result["outcomes"].items() if count}
    if result["value"] == 100.0:
        return ""
    if set(outcomes) <= {"judge_error"}:
        return UNJUDGED if most == FEW else f"{outcomes} {ran.stderr[:300]}"
    return f"value {result['value']}, {outcomes}"


def lm_eval_once(name, damaged, number):
    """Return the answers of lm-eval's model that are not the right ones."""
    from lm_eval.api.instance import Instance  # slow to import

    from serve_eval.lm_eval_model.model import ServeEvalLM

    faults = {**BROKEN, "seed": number} if damaged else {}
    most = _limit_of(number, damaged)
    with flavour_in_thread(name, **faults) as url:
        model = ServeEvalLM(base_url=url, model="M", concurrency=4)
        asked = []
        for i in range(8):
            turns = [{"role": "user", "content": f"What is {i + 12} + 30?"}]
            given = {"until": ["Question:", "\n\n"], "max_gen_toks": most}
            context = model.apply_chat_template(turns)
            asked.append(
                Instance(request_type="generate_until", doc={}, arguments=(context, given), idx=i)
            )
        texts = model.generate_until(asked)
    wrong = [
        text
        for i, text in enumerate(texts)
        if not re.search(rf"\b{i + 42}\b", text) and (text.strip() or most == ENOUGH)
    ]
    if wrong:
        return f"{len(wrong)} wrong: {wrong[0][:200]!r}"
    return UNJUDGED if not all(text.strip() for text in texts) else ""
