"""Test the launcher of the embedded model, and the model by its parts."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import embedded
from serve_eval.launchers._embedded.model import TILE, Model, read
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers._http.server import serve_app
from serve_eval.plugins import registry
from serve_eval.protocol import chat_template
from serve_eval.schema import Endpoint, LaunchContext
from tests.cli.command import environment, serve_eval
from tests.launchers.conftest import gone, wait_until_gone
from tests.launchers.embedded import tiny
from tests.root import ROOT


@pytest.fixture
def context(tmp_path):
    return LaunchContext(model=None, log_dir=tmp_path / "run" / "logs")


def launch_and(context, story, **options):
    async def tell():
        async with embedded.launch(context, embedded.EmbeddedOptions(**options)) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


async def ask(endpoint, model, **more):
    body = {"model": model, "prompt": "2+2=", "max_tokens": 4, "temperature": 0, **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint.base_url + "/completions", json=body) as reply,
    ):
        assert reply.status == 200
        return await reply.json()


def test_it_serves_two_models_and_leaves_nothing_behind(context, folder):
    async def story(endpoint):
        assert endpoint.model == "embedded"
        sound = await ask(endpoint, "embedded", max_tokens=30)
        hurt = await ask(endpoint, "hurt", max_tokens=30)
        assert sound["choices"][0]["text"] != hurt["choices"][0]["text"]
        pid = endpoint.info.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
        threads = (
            {entry.name for entry in Path(f"/proc/{pid}/task").iterdir()}
            if Path("/proc/self").exists()
            else {"1"}
        )
        assert len(threads) == 1  # numpy uses one core
        return endpoint

    endpoint = launch_and(context, story, weights=str(folder), also={"hurt": "int3"})
    assert gone(endpoint.info.pid)
    assert (endpoint.info.launcher, endpoint.info.damage) == ("embedded", "none")
    assert [file.name for file in context.log_dir.iterdir()] == ["embedded.log"]
    assert (
        context.log_dir / "embedded.log"
    ).read_text() == f"embedded model at {endpoint.base_url}\n"
    assert stat.S_IMODE(context.log_dir.stat().st_mode) == 0o700


def test_it_ends_when_the_run_fails_and_when_its_parent_is_killed(context, folder, tmp_path):
    pids = []

    async def failing(endpoint):
        pids.append(endpoint.info.pid)
        raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        launch_and(context, failing, weights=str(folder))
    assert all(map(gone, pids))
    (script := tmp_path / "parent.py").write_text(
        "import asyncio, pathlib, sys\nfrom launchers import embedded\nfrom serve_eval.schema"
        " import LaunchContext\nasync def main():\n    context = LaunchContext(model='m',"
        " log_dir=pathlib.Path(sys.argv[1]))\n    async with embedded.launch(context,"
        " embedded.EmbeddedOptions(weights=sys.argv[2])) as endpoint:\n       "
        " print(endpoint.info.pid, flush=True)\n        await"
        " asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "logs"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            pid = int(parent.stdout.readline())
            assert not gone(pid)
        finally:
            parent.kill()
    wait_until_gone(pid)


def test_what_cannot_be_served_is_an_error_that_says_why(context, folder, tmp_path):
    async def story(endpoint):
        raise AssertionError("it started")

    with pytest.raises(LaunchError, match=r"has no config\.json"):
        launch_and(context, story, weights=str(tmp_path / "nowhere"))
    with pytest.raises(LaunchError, match="`also` names embedded"):
        launch_and(context, story, weights=str(folder), also={"embedded": "int8"})
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text("{}")
    with pytest.raises(
        LaunchError, match=r"(?s)before it was ready.*broken cannot be served: .*tokenizer\.json"
    ):
        launch_and(context, story, weights=str(broken))
    with pytest.raises(PlanError, match=r"launcher\.damage: Invalid enum value .int2."):
        registry.check_options(embedded.launch, {"damage": "int2"}, "launcher")


def test_the_command_says_what_is_served(context, folder):
    [command] = embedded.commands(
        context,
        embedded.EmbeddedOptions(
            weights=str(folder),
            damage="int8",
            also={"a=b": "int4-g32"},
            strict_fields=True,
            port=8123,
        ),
    )
    assert command[1:6] == ["-P", "-m", "serve_eval.launchers._embedded", "--weights", str(folder)]
    assert command[6:] == [
        *(
            "--model",
            "embedded=int8",
            "--model",
            "a=b=int4-g32",
            "--strict-fields",
            "--port",
            "8123",
        ),
        *("--ready-file", str(context.log_dir / "embedded.url")),
    ]
    assert not context.log_dir.exists()
    shown = serve_eval("serve", "embedded", "--set", f"launcher.weights={folder}", "--dry-run")
    assert shown.returncode == 0
    assert (
        f"-P -m serve_eval.launchers._embedded --weights {folder} --model embedded=none"
        in shown.stdout
    )


@pytest.mark.slow
def test_serve_holds_it_until_it_is_asked_to_end(folder, tmp_path):
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "serve_eval",
            "serve",
            "embedded",
            "--set",
            f"launcher.weights={folder}",
        ],
        env=environment(XDG_STATE_HOME=str(tmp_path / "state")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        base_url = holder.stdout.readline().split()[-1]
        assert holder.stdout.readline().split() == ["model:", "embedded"]
        answer = asyncio.run(ask(Endpoint(base_url=base_url), "embedded"))
        assert answer["usage"]["prompt_tokens"] == 4
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(timeout=30) == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        asyncio.run(ask(Endpoint(base_url=base_url), "embedded"))


LINEAR = "model.layers.1.mlp.down_proj.weight"


def test_both_types_are_read_as_they_are(tmp_path):
    exact = {
        "a": np.array([[1.5, -2.25], [0.0, 3.0e-5]], dtype=np.float32),
        "b": np.ones(3, dtype=np.float32),
    }
    tiny.write_safetensors(tmp_path / "model.safetensors", exact)
    found = read(tmp_path)
    assert all(np.array_equal(found[name], exact[name]) for name in exact)
    tiny.write_safetensors(tmp_path / "model.safetensors", exact, "BF16")
    found = read(tmp_path)
    assert found["a"].dtype == np.float32
    assert found["a"] == pytest.approx(exact["a"], rel=2**-7)
    assert np.array_equal(found["b"], exact["b"])


def test_another_type_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    tiny.write_safetensors(path, {"a": np.ones(2, dtype=np.float32)})
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F64"'))
    with pytest.raises(ValueError, match="a is F64; only BF16 and F32 are supported"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "levels", "group"),
    [("int8", 255, 64), ("int4", 15, 64), ("int4-g32", 15, 32), ("int3", 7, 64)],
)
def test_damage_leaves_so_many_evenly_spaced_values_per_row_or_group(
    tmp_path, damage, levels, group
):
    weight = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    weight[3] = 0
    tiny.write_safetensors(
        tmp_path / "model.safetensors", {LINEAR: weight, "model.embed_tokens.weight": weight}
    )
    found = read(tmp_path, damage)
    assert np.array_equal(found["model.embed_tokens.weight"], weight)
    for before, after in zip(
        weight.reshape(-1, group), found[LINEAR].reshape(-1, group), strict=True
    ):
        scale = np.abs(before).max() / (levels // 2)
        assert len(np.unique(after)) <= levels
        assert np.abs(after - before).max() <= scale / 2 * 1.001
        if scale:
            assert after / scale == pytest.approx(np.rint(after / scale), abs=1e-3)
            assert np.abs(after).max() == pytest.approx(np.abs(before).max())
    assert not found[LINEAR][3].any()


def test_fewer_bits_do_more_damage(folder):
    whole = read(folder)[LINEAR]
    kinds = ["none", "int8", "int4", "int3"]
    errors = [float(np.square(read(folder, kind)[LINEAR] - whole).mean()) for kind in kinds]
    assert errors[0] == 0
    assert errors == sorted(errors)
    assert errors[3] > 4 * errors[2] > 100 * errors[1]


@pytest.fixture(scope="module")
def merging(folder, tmp_path_factory):
    """Return the tiny model's tokenizer with some merges, in order of priority."""
    content = json.loads((folder / "tokenizer.json").read_text())
    merges = [["h", "e"], ["Ġ", "h"], ["l", "l"], ["he", "ll"], ["1", "2"], ["Ġ", "Ġ"], ["'", "s"]]
    vocab = content["model"]["vocab"]
    for merge in merges:
        vocab["".join(merge)] = len(vocab)
    content["model"]["merges"] = merges
    path = tmp_path_factory.mktemp("merging") / "tokenizer.json"
    path.write_text(json.dumps(content))
    return Tokenizer(path)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", ["hell", "o"]),
        (" hello", [" ", "hell", "o"]),  # "he" is merged before the blank could be
        ("hi h", ["h", "i", " h"]),
        ("12", ["1", "2"]),  # every digit is a token, although there is a merge
        ("a   b", ["a", "  ", " ", "b"]),
        ("it's", ["i", "t", "'s"]),
        ("<|user|>\nhell<|end|>", ["<|user|>", "\n", "hell", "<|end|>"]),
        ("<|user", ["<", "|", "u", "s", "e", "r"]),
        ("", []),
    ],
)
def test_a_text_is_merged_as_the_list_says(merging, text, tokens):
    assert [merging.bytes_of(i).decode() for i in merging.encode(text)] == tokens


@given(st.text())
def test_every_text_comes_back(merging, text):
    ids = merging.encode(text)
    assert b"".join(map(merging.bytes_of, ids)) == text.encode(errors="replace")
    assert all(0 <= i < tiny.VOCABULARY + 7 for i in ids)


ENDLESS = "{% for _ in range(90000) %}" * 3 + "{% endfor %}" * 3


def _with(folder, template):
    tiny.write(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


async def _chats(folder, *variables):
    """Return the responses to chats sent together, and check that texts are answered meanwhile."""

    async def ask(session, url, path, body):
        async with session.post(
            url + path, json={"model": "tiny", "max_tokens": 2, **dict(body)}
        ) as reply:
            return reply.status, await reply.text()

    async with (
        serve_app(create_app(folder, {"tiny": "none"})) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        turns = [{"role": "user", "content": "Hi"}]
        bodies = [{"messages": turns, "chat_template_kwargs": one} for one in variables]
        chats = [
            asyncio.create_task(ask(session, url, "/chat/completions", body)) for body in bodies
        ]
        assert (await ask(session, url, "/completions", {"prompt": "Hi"}))[0] == 200
        return list(await asyncio.gather(*chats))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDLESS, "the chat template fails: took longer than 1 s"),
        ("{{ 'a' * 10**12 }}", "the chat template fails: MemoryError"),
        ("{{ 'a'|center(4 * 10**7) }}", "it makes a prompt of 40000000 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth"),
        ("{{ messages.__init__.__globals__ }}", "access to attribute '__init__'"),
        ("{{ raise_exception('no system prompt') }}", "no system prompt"),
    ],
)
async def test_a_template_that_never_ends_or_fails_is_a_400(template, said, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "RENDERING_S", 1.0 if template == ENDLESS else 20.0)
    [(status, text)] = await _chats(_with(tmp_path, template), {})
    assert (status, said in json.loads(text)["message"]) == (400, True), text
    assert str(tmp_path) not in text


async def test_variables_of_one_chat_are_not_those_of_the_next(tmp_path):
    folder = _with(tmp_path, "{{ raise_exception('it is ' ~ x) if x is defined else 'fine' }}")
    answers = await _chats(folder, {"x": 1}, {}, {"x": 2}, {"messages": []})
    assert [status for status, _ in answers] == [400, 200, 400, 400]
    assert ["it is 1" in answers[0][1], "it is 2" in answers[2][1]] == [True, True]


def test_a_folder_whose_template_is_none_is_not_served(tmp_path):
    with pytest.raises(ValueError, match="the chat template fails"):
        create_app(_with(tmp_path, "{% for"), {"tiny": "none"})


TENSORS = tiny.tensors(0)


def _ids(count, seed=1):
    return [int(i) for i in np.random.default_rng(seed).integers(0, tiny.VOCABULARY, count)]


@settings(max_examples=10)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 99))
def test_a_prompt_in_pieces_gives_what_a_plain_pass_gives(model, pieces, seed):
    ids = _ids(sum(pieces), seed)
    expected, cache, start = tiny.logits(TENSORS, ids), model.cache(1), 0
    for size in pieces:
        every = model.extend(ids[start : start + size], start, cache, 0, every=True)
        assert every == pytest.approx(expected[start : start + size], abs=1e-3)
        last = model.extend(ids[start : start + size], start, cache, 0)
        assert last == pytest.approx(expected[start + size - 1], abs=1e-3)
        start += size


def test_a_step_of_sequences_of_any_lengths_gives_what_plain_passes_give(model):
    prompts = [_ids(count, count) for count in (1, 2, 63, 64, 65, 130, 260, 7, 31)]
    cache = model.cache(len(prompts))
    for row, ids in enumerate(prompts):
        model.extend(ids, 0, cache, row)
    for step in range(3):
        lengths = [len(ids) for ids in prompts]
        prompts = [[*ids, 5 + step] for ids in prompts]
        found = model.step([5 + step] * len(prompts), lengths, cache)
        for row, ids in zip(found, prompts, strict=True):
            assert row == pytest.approx(tiny.logits(TENSORS, ids)[-1], abs=1e-3)


def test_a_sequence_that_moves_to_another_row_goes_on_as_before(model):
    ids, cache = _ids(20), model.cache(2 * TILE)
    model.extend(ids, 0, cache, TILE + 3)
    model.extend(_ids(30, 2), 0, cache, 0)
    cache.move(TILE + 3, 0, len(ids))
    assert model.step([9], [20], cache)[0] == pytest.approx(
        tiny.logits(TENSORS, [*ids, 9])[-1], abs=1e-3
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", 1), ("tie_word_embeddings", False), ("model_type", "gpt2")],
)
def test_a_model_that_is_no_such_llama_is_refused_by_name(folder, tmp_path, name, value):
    config = json.loads((folder / "config.json").read_text()) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{name} is .*only .* is supported"):
        Model(tmp_path)
