"""Ask pairs of servers that hand over as vLLM does, with imitations of its prefill and decode.

tests/vllm asks real ones. The fields and the counter are those that vLLM 0.32 sends.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.attribute import attribute, prepare_asking, worker
from tests.scripted_server import ScriptedServer, answer, external, raw

N = 16


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=4),
    )


@pytest.fixture(scope="module")
def right(plan, tmp_path_factory):
    """Return the right answer to each prompt, by its hash; every eighth is wrong."""
    file = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(file, prepare(plan), lambda task, sample: 1.0)
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    return {one["sha256"]: one["wrong" if i % 8 == 0 else "right"] for i, one in enumerate(lines)}


@dataclass
class Servers:
    """One prefill and some decode servers; `corrupt` decodes what was handed over wrongly."""

    right: dict[str, str]
    hands_over: bool = True
    takes_over: bool = True
    counts: bool = True
    corrupt: bool = False
    bad_alone: bool = False
    moved: dict[int, int] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    """Hand-overs that nobody has fetched. vLLM counts one as expired after a while."""
    handed: int = 0

    def _text(self, body):
        return self.right.get(prompt_sha256(body["prompt"]), "#### 0")

    def prefill(self, request):
        body = request.body
        asked = body.get("kv_transfer_params")
        if not asked:
            return answer(self._text(body))
        assert (body["max_tokens"], asked["do_remote_decode"]) == (1, True)
        self.handed += self.hands_over
        if self.hands_over:
            self.kept.add(self.handed)
        handed = {"do_remote_prefill": True, "remote_block_ids": [[self.handed]], "remote_port": 1}
        more = {"kv_transfer_params": handed if self.hands_over else None}
        return answer(" ", finish="length", body=more)

    def decode(self, number):
        def reply(request):
            body = request.body
            handed = bool(body.get("kv_transfer_params")) and self.takes_over
            self.moved[number] = self.moved.get(number, 0) + 60 * handed
            if handed:
                [[block]] = body["kv_transfer_params"]["remote_block_ids"]
                self.kept.remove(block)
            wrong = self.bad_alone or (handed and self.corrupt)
            return answer("#### 12345" if wrong else self._text(body))

        return reply

    def metrics(self, number):
        name = "vllm:prompt_tokens_by_source_total"
        lines = [f'{name}{{engine="0",source="local_compute"}} 9.0']
        lines += [f'{name}{{engine="0",source="external_kv_transfer"}} {self.moved[number]}.0']
        return raw("\n".join(lines).encode() + b"\n" if self.counts else b"# nothing\n")


def asked(
    plan,
    out,
    servers,
    decodes=1,
    front=None,
):
    """Ask the servers about a run of the first one, or of a `front` with that reply."""

    async def story():
        async with AsyncExitStack() as stack:
            first = ScriptedServer(servers.prefill)
            urls = [f"context={await stack.enter_async_context(first.serve())}"]
            for number in range(decodes):
                routes = {"/metrics": lambda request, n=number: servers.metrics(n)}
                one = ScriptedServer(servers.decode(number), routes=routes)
                servers.moved[number] = 0
                urls.append(f"generation={await stack.enter_async_context(one.serve())}")
            at = urls[0].partition("=")[2]
            if front is not None:
                at = await stack.enter_async_context(ScriptedServer(front).serve())
            here = replace(plan, launcher=external(at))
            await evaluate(here, out, environ={})
            given = [worker(url) for url in urls]
            asking = await prepare_asking(out, here, given=given, samples=N, environ={})
            return await attribute(out, asking, environ={})

    return asyncio.run(story())


def _accused(done):
    parts = [done.alone, done.in_pairs, done.transfer]
    rows = [row for part in parts if part is not None for row in part.rows if row.accused]
    return [(row.role, row.bad, row.others_bad) for row in rows]


def test_a_sound_pair_is_not_accused(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right))
    assert (_accused(done), done.exit_code, done.warnings) == ([], 0, ())
    assert [(row.bad, row.others_bad, row.answers) for row in done.transfer.rows] == [(2, 2, N)]


@pytest.mark.parametrize("decodes", [1, 2])
def test_every_hand_over_is_fetched(plan, right, tmp_path, decodes):
    """One that is not expires, and the next command would blame the context server for it."""
    servers = Servers(right)
    done = asked(plan, tmp_path, servers, decodes=decodes)
    assert servers.handed == N * decodes + 1  # one to find out how it hands over
    assert servers.kept == set()
    assert done.requests == N * (1 + decodes + 2 * decodes)


def test_a_corrupt_transfer_of_one_pair_is_named(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right, corrupt=True))
    assert _accused(done) == [("transfer", N, 2)]
    assert done.exit_code == 1


def test_a_bad_server_is_not_taken_for_a_bad_transfer(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right, bad_alone=True))
    assert _accused(done) == [("server", N, 2)]


def test_a_fault_in_front_of_sound_servers_is_told(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right), front=answer("#### 12345"))
    assert (_accused(done), done.exit_code) == ([], 0)
    [told] = done.warnings
    assert told.startswith(
        f"the run has {N} of these {N} prompts wrong, and no server or pair more than 2 (p = 6e-05)"
    )


def _change_some(right, number, change):
    """Return a front that changes the answers to the first prompts, which stay right or wrong."""
    changed = set(list(right)[:number])

    def reply(request):
        prompt = prompt_sha256(request.body["prompt"])
        text = right.get(prompt, "#### 0")
        return answer(change(text) if prompt in changed else text)

    return reply


@pytest.mark.parametrize("number", [3, 4])
def test_answers_that_begin_otherwise_in_some_requests_are_told(plan, right, tmp_path, number):
    """Of four sources, the run is the odd one by chance in a quarter: 4**-4 is below .005."""
    front = _change_some(right, number, lambda text: f"Of course: {text}")
    done = asked(plan, tmp_path, Servers(right), front=front)
    assert (_accused(done), done.exit_code) == ([], 0)
    assert len(done.warnings) == (number == 4)
    for told in done.warnings:
        assert told.startswith(
            "the run's answers to 4 of these 16 prompts differ from their first character on from"
            " those of all servers and pairs, which agree there (p = 0.004): the fault is not in"
            " the servers as they answer here"
        )


def test_answers_that_part_later_are_no_sign_of_a_fault(plan, right, tmp_path):
    """The numerics of another load part answers anywhere, and in the first token too."""

    def part(text):
        return f"Of course: {text}" if prompts.index(text) < 5 else f"{text}."

    prompts = list(right.values())
    done = asked(plan, tmp_path, Servers(right), front=_change_some(right, N, part))
    assert (_accused(done), done.exit_code, done.warnings) == ([], 0, ())


def test_space_at_the_start_of_answers_is_no_sign_of_a_fault(plan, right, tmp_path):
    front = _change_some(right, N, lambda text: f"\n{text}")
    done = asked(plan, tmp_path, Servers(right), front=front)
    assert (_accused(done), done.exit_code, done.warnings) == ([], 0, ())


def test_a_bad_transfer_is_not_looked_for_in_front_of_the_servers(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right, corrupt=True), front=answer("#### 12345"))
    assert (len(_accused(done)), done.warnings) == (1, ())


def test_all_pairs_of_a_bad_transfer_are_named(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right, corrupt=True), decodes=2)
    assert _accused(done) == [("transfer", N, 2)] * 2


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (
            {"hands_over": False},
            "hands nothing over, so no pair was asked: no disaggregated_params",
        ),
        ({"takes_over": False}, "took over no KV cache: it computed the prompts again"),
    ],
)
def test_servers_that_do_not_take_the_hand_over_are_an_error(
    plan, right, tmp_path, servers, message
):
    done = asked(plan, tmp_path, Servers(right, **servers))
    assert done.exit_code == 4
    assert message in done.warnings[0]
    assert _accused(done) == []


def test_a_server_that_counts_nothing_is_believed(plan, right, tmp_path):
    done = asked(plan, tmp_path, Servers(right, takes_over=False, counts=False))
    assert done.exit_code == 0
