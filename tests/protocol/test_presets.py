"""Test the presets and the chat templates of models.

That its values are those of the cards can only be read there.
"""

import re
from datetime import date
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.protocol import chat_template
from serve_eval.protocol.chat_template import ChatTemplate, Rendering, read, renderer
from serve_eval.protocol.presets import (
    EFFORTS,
    choose_options,
    describe_options,
    merge_bodies,
    read_presets,
)
from serve_eval.protocol.sampling_fields import find_in_description, find_meaningless
from serve_eval.protocol.shared import build_task
from serve_eval.schema import ImagePart, ImageUrl, Message, Spec

TABLE = read_presets()
ROWS = pytest.mark.parametrize("row", TABLE.presets, ids=lambda row: row.name)


def test_there_are_rows_for_more_than_thirty_families():
    assert len({row.family for row in TABLE.presets}) > 30
    names = [row.name for row in TABLE.presets]
    assert len(names) == len(set(names))
    patterns = [pattern for row in TABLE.presets for pattern in row.models]
    assert len(patterns) == len(set(patterns))


@ROWS
def test_a_row_has_a_source_and_the_day_of_reading_not_after_the_tables(row):
    assert re.fullmatch(r"https://[\w./-]+", row.source)
    assert re.fullmatch(r"(https://[\w./-]+)?", row.switch_source)
    assert date.fromisoformat(row.read) <= date.fromisoformat(TABLE.version)
    assert row.options or row.effort


@ROWS
def test_every_row_and_each_of_its_efforts_makes_requests(row):
    for effort in ("", *row.effort):
        options = choose_options(row, effort, row, TABLE)
        task = build_task(Spec(name="gsm8k", options={"apply_chat_template": True, **options}))
        assert task.sampling.max_tokens == options.get("max_tokens", task.sampling.max_tokens)
        assert {**task.extra, **(options.get("extra_body") or {})}.keys() == task.extra.keys()


@ROWS
def test_an_effort_of_another_mode_has_that_modes_sampling(row):
    for effort, told in dict(row.effort).items():
        other = row if told.row is None else TABLE.find(told.row)
        assert other.family == row.family
        options = choose_options(row, effort, row, TABLE)
        assert options.get("temperature") == other.temperature


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-thinking"),
        ("/models/Qwen3-32B-FP8/", "qwen3-thinking"),
        ("nvidia/Qwen3-235B-A22B-FP4", "qwen3-thinking"),
        ("Qwen/Qwen3-4B-Thinking-2507", "qwen3-thinking-2507"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-instruct-2507"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder"),
        ("Qwen/Qwen3-8B-Base", None),
        ("Qwen/Qwen3-Embedding-8B", None),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", None),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "nemotron-super-v1.5-thinking"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "llama-nemotron-v1-thinking"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        ("meta-llama/Llama-3.1-8B", None),
        ("zai-org/GLM-4.5-Air", "glm-4.5"),
        ("zai-org/GLM-4.5V", None),
        ("my-org/my-model", None),
    ],
)
def test_a_model_is_found_by_the_last_part_of_its_id(model, name):
    found = TABLE.find_for([model])
    assert (found and found.name) == name


def test_an_unknown_name_comes_with_the_nearest():
    with pytest.raises(PlanError, match=r"unknown preset 'gpt-os'. Did you mean 'gpt-oss'\?") as e:
        TABLE.find("gpt-os")
    assert "serve-eval data list presets" in e.value.hint


def test_an_effort_that_a_family_lacks_is_refused_with_those_that_it_has():
    row = TABLE.find("gpt-oss")
    with pytest.raises(PlanError, match="gpt-oss has no effort none: its efforts are low, medium"):
        choose_options(row, "none", row, TABLE)
    row = TABLE.find("qwq")
    with pytest.raises(PlanError, match="qwq has no effort low: it has no efforts"):
        choose_options(row, "low", row, TABLE)


def test_the_upper_fields_win_and_variables_of_templates_are_merged_one_by_one():
    lower = {"top_k": 20, "chat_template_kwargs": {"thinking": True, "a": 1}}
    upper = {"min_p": 0, "chat_template_kwargs": {"reasoning_effort": "low"}}
    assert merge_bodies(lower, upper) == {
        "top_k": 20,
        "min_p": 0,
        "chat_template_kwargs": {"thinking": True, "a": 1, "reasoning_effort": "low"},
    }
    switched = {"chat_template_kwargs": {"enable_thinking": False}}
    assert merge_bodies(lower, switched)["chat_template_kwargs"] == {
        "a": 1,
        "enable_thinking": False,
    }


def test_options_are_written_in_one_line():
    options = {
        "temperature": 0.6,
        "thinking": True,
        "system_prompt": "detailed  thinking\non",
        "extra_body": {"top_k": 20, "chat_template_kwargs": {"thinking": False}},
    }
    assert describe_options(options) == (
        "temperature 0.6, thinking on, system_prompt 'detailed thinking on', top_k 20,"
        " chat_template_kwargs.thinking off"
    )
    assert EFFORTS == ("none", "low", "medium", "high", "max")


FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
SYNTHETIC = '{"method": "mtp", "rejection_sample_method": "synthetic"}'


@pytest.mark.parametrize(
    "content",
    [
        {"env": {FORCE: "2"}},
        {"generation_servers": {"env": {FORCE: 1.49}}},
        {"config": {"load_format": "dummy"}},
        {"config": {"load_format": "DUMMY"}},
        {"speculative": {"rejection_sample_method": "synthetic"}},
        {"speculative": {"synthetic_acceptance_rates": [0.9, 0.5]}},
        {"env": {"SGLANG_SIMULATE_ACC_LEN": "2.99"}},
        {"env": {"TRTLLM_DISAGG_BENCHMARK_GEN_ONLY": "1"}},
        {"extra_body": {"ignore_eos": True}},
        ["--load-format", "dummy"],
        ["--load_format=dummy"],
        ["--speculative-config", SYNTHETIC],
        ["--speculative-config=" + SYNTHETIC],
        ["--speculative-config.rejection_sample_method", "synthetic"],
        ["--ignore-eos"],
        ["-e", f"{FORCE}=2"],
        [f"--env={FORCE}=2"],
        [f"--export=ALL,{FORCE}=2"],
        ["bash", "-c", f"{FORCE}=2 trtllm-serve"],
        f"env {FORCE}=2 trtllm-serve",
        "vllm serve m --load-format dummy",
    ],
)
def test_each_form_is_found(content):
    [found] = find_meaningless(content, "launcher")
    assert found.effect in str(found)


@pytest.mark.parametrize(
    "content",
    [
        {"env": {FORCE: "0", "SGLANG_SIMULATE_ACC_LEN": "-1", "OTHER": "dummy"}},
        {"env": {FORCE: None}},
        {"config": {"load_format": "auto", "speculative_config": {"decoding_type": "MTP"}}},
        {"speculative": {"rejection_sample_method": "block", "synthetic_acceptance_rate": None}},
        {"extra_body": {"ignore_eos": False}},
        {"model": "dummy", "extra_args": ["--load-format", "safetensors"]},
        ["--ignore-eos", "false"],
        ["--served-model-name", "ignore_eos"],
        "trtllm-serve",
        "",
        None,
        7,
        "{not json --load",
    ],
)
def test_sound_settings_are_not(content):
    assert list(find_meaningless(content, "launcher")) == []


def test_a_place_leads_to_the_setting():
    [found] = find_meaningless({"generation_servers": {"env": {FORCE: "2"}}}, "launcher")
    assert str(found) == (
        f"launcher.generation_servers.env: {FORCE} 2 accepts a fixed number of drafts, right or"
        " wrong"
    )


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({"vllm_config": "model='m', load_format=dummy, tensor_parallel_size=1"}, 1),
        ({"vllm_config": "load_format=<LoadFormat.DUMMY: 'dummy'>, seed=0"}, 1),
        ({"vllm_config": {"load_config": {"load_format": "dummy"}}}, 1),
        ({"vllm_config": "speculative_config=S(rejection_sample_method='synthetic', x=1)"}, 1),
        ({"load_format": "dummy", "internal_states": [{}]}, 1),
        ({"vllm_config": "load_format=auto, speculative_config=None", "vllm_env": {}}, 0),
        ({"disaggregated_params": {}}, 0),
        (None, 0),
    ],
)
def test_the_description_of_a_server_is_read(told, count):
    assert len(list(find_in_description(told, "the server"))) == count


TURNS = (Message(role="system", content="Be brief."), Message(role="user", content="Ünd <1+1>?"))

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
CHATML_TEXT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nÜnd"
    " <1+1>?<|im_end|>\n<|im_start|>assistant\n"
)


def _render(
    text,
    *,
    today=None,
    tokens=None,
    **variables,
):
    template = ChatTemplate(text=text, tokens=tokens or {}, file=Path("tokenizer_config.json"))
    return renderer(template, variables=variables, today=today)(TURNS)


@pytest.mark.parametrize(
    ("text", "variables", "shown"),
    [
        (CHATML, {}, CHATML_TEXT),
        (CHATML, {"enable_thinking": False}, CHATML_TEXT + "<think>\n\n</think>\n\n"),
        (CHATML, {"enable_thinking": True}, CHATML_TEXT),
        # a line with only a statement leaves nothing behind
        ("{% for m in messages %}\n  {% if loop.last %}\n{{ m.role }}\n  {% endif %}\n"
         "{% endfor %}\n",
         {}, "user\n"),
        ("{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}"
         "{% endfor %}",
         {}, "system"),
        ("{{ messages[1] | tojson }}", {}, '{"role": "user", "content": "Ünd <1+1>?"}'),
        ("{{ {'b': 1, 'a': '<é>'} | tojson(indent=1, sort_keys=true) }}", {},
         '{\n "a": "<é>",\n "b": 1\n}'),
        ("{{ bos_token }}{{ messages[0]['content'] | trim | upper }}", {}, "<s>BE BRIEF."),
        ("{% generation %}{{ messages[1].role }}{% endgeneration %}!", {}, "user!"),
        ("{{ tools is none }} {{ documents is none }} {{ x is defined }} [{{ nothing }}]", {},
         "True True False []"),
    ],
)  # fmt: skip
def test_templates_render_as_transformers_renders_them(text, variables, shown):
    assert _render(text, tokens={"bos_token": "<s>"}, **variables) == shown


def test_a_template_that_shows_the_date_needs_one_that_stays():
    text = "{{ strftime_now('%d %b %Y') }}"
    assert _render(text, today=date(2026, 11, 20)) == "20 Nov 2026"
    with pytest.raises(PlanError, match="shows the date") as refused:
        _render(text)
    assert "template_date" in refused.value.hint
    assert _render("{% if strftime_now is defined %}x{% endif %}") == "x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "chat template fails"),
        ("{{ ''.__class__.__mro__ }}", "chat template fails"),
        ("{{ messages.append(1) }}", "chat template fails"),
        ("{{ messages.__init__.__globals__ }}", "chat template fails"),
        ("{% include '/etc/passwd' %}", "chat template fails"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ range(10 ** 9) }}", "chat template fails"),
        ("{{ messages[0].content + 1 }}", "chat template fails"),
    ],
)
def test_what_a_template_must_not_or_cannot_do_is_refused(text, why):
    with pytest.raises(PlanError, match=why) as refused:
        _render(text)
    assert "tokenizer_config.json" in str(refused.value)


def test_images_are_left_to_the_server():
    turns = (Message(role="user", content=(ImagePart(image_url=ImageUrl(url="data:,")),)),)
    template = ChatTemplate(text=CHATML, tokens={}, file=Path("f"))
    with pytest.raises(PlanError, match="media cannot be rendered"):
        renderer(template, variables={}, today=None)(turns)


def _folder(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "text", "tokens"),
    [
        ({"tokenizer_config__json": '{"chat_template": "A", "bos_token": "<s>"}'},
         "A", {"bos_token": "<s>"}),
        (
            {"tokenizer_config__json": '{"chat_template": "A", "eos_token": {"content": "</s>"},'
             ' "pad_token": null}'},
            "A",
            {"eos_token": "</s>"},
        ),
        (
            {"tokenizer_config__json": '{"chat_template": [{"name": "tool_use", "template": "T"}, '
             '{"name": "default", "template": "D"}]}'},
            "D",
            {},
        ),
        ({"tokenizer_config__json": '{"chat_template": "A"}', "chat_template__jinja": "J"},
         "J", {}),
        (
            {"chat_template__jinja": "J",
             "special_tokens_map__json": '{"bos_token": {"content": "<b>"}}'},
            "J",
            {"bos_token": "<b>"},
        ),
    ],
)  # fmt: skip
def test_templates_and_tokens_are_found_where_models_have_them(tmp_path, files, text, tokens):
    found = read(_folder(tmp_path, **files))
    assert (found.text, found.tokens) == (text, tokens)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config__json": "{}"},
        {"tokenizer_config__json": "{"},
        {"tokenizer_config__json": "[" * 10**5},
    ],
    ids=range(4),
)
def test_a_folder_without_a_template_is_refused(tmp_path, files):
    with pytest.raises(PlanError):
        read(_folder(tmp_path, **files))


def test_the_checksum_is_that_of_all_that_decides_the_text():
    one, other, third = (
        ChatTemplate(text=text, tokens=tokens, file=Path(name))
        for text, tokens, name in (("a", {}, "x"), ("a", {}, "y"), ("a", {"bos_token": "s"}, "x"))
    )
    assert one.sha256 == other.sha256 != third.sha256


_LOOP = "{% for _ in range(90000) %}"
LOOPS = f"{_LOOP}{_LOOP}{_LOOP}{{% endfor %}}{{% endfor %}}{{% endfor %}}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOOPS, "the chat template fails: took longer than 1 s"),
        ("{{ 'a' * 10**12 }}", "the chat template fails: MemoryError"),
        (
            "{{ messages[0].role[:1] * 4 * 10**7 }}",
            (
                "the chat template fails: it makes a prompt of 40000000 characters; the limit is"
                " 33554432"
            ),
        ),
        (
            "{{ 'a'|center(4 * 10**7) }}",
            "the chat template fails: it makes a prompt of 40000000 characters",
        ),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "the chat template fails: maximum recursion depth",
        ),
        (
            "{{ ''.__class__.__base__.__subclasses__() }}",
            "the chat template fails: access to attribute '__class__'",
        ),
        ("{{ messages|nofilter }}", "the chat template fails: No filter named 'nofilter'"),
        ("{{ raise_exception('no system prompt') }}", "the chat template fails: no system prompt"),
    ],
)
def test_a_template_that_never_ends_or_fails_is_told_of(text, told, monkeypatch):
    monkeypatch.setattr(chat_template, "RENDERING_S", 1.0 if text == LOOPS else 20.0)
    template = ChatTemplate(text=text, tokens={}, file=Path("a.jinja"))
    render = Rendering(template, variables={}, today=None)
    with pytest.raises(PlanError, match=re.escape(f"a.jinja: {told}")):
        render(TURNS)
    render.close()


def test_a_number_that_takes_for_ever_is_given_up_while_the_template_is_made(
    monkeypatch,
):
    monkeypatch.setattr(chat_template, "RENDERING_S", 2.0)
    template = ChatTemplate(text="{{ 10 ** (10 ** 9) }}", tokens={}, file=Path("a.jinja"))
    render = Rendering(template, variables={}, today=None)
    with pytest.raises(
        PlanError, match=r"a\.jinja: the chat template fails: .*took longer than 2 s"
    ):
        render(TURNS)
    render.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}", "maximum recursion depth"),
        ("{% if x %}" * 10**4, "maximum recursion depth"),
        ("{{ " + "1" * 10**4 + " }}", "Exceeds the limit"),
        ("a" * 10**6, "1000000 characters; the limit is 524288"),
    ],
    ids=["brackets", "ifs", "digits", "long"],
)
def test_a_text_that_no_model_has_as_its_template_is_refused_at_once(text, told):
    with pytest.raises(PlanError, match=rf"a\.jinja: the chat template .*{told}"):
        Rendering(
            ChatTemplate(text=text, tokens={}, file=Path("a.jinja")), variables={}, today=None
        )


def test_a_template_is_rendered_alike_in_a_process_of_its_own():
    text = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{"
        " strftime_now('%Y') }}"
    )
    text += "{{ x }}"
    template, day = (
        ChatTemplate(text=text, tokens={"bos_token": "<s>"}, file=Path("a.jinja")),
        date(2026, 11, 20),
    )
    render = Rendering(template, variables={"x": [1]}, today=day)
    for _ in range(2):
        assert render(TURNS) == renderer(template, variables={"x": [1]}, today=day)(TURNS)
        assert render(TURNS, {"x": 2}).endswith("2")
        render.close()
    with pytest.raises(PlanError, match=r"a\.jinja: the chat template fails: "):
        Rendering(
            ChatTemplate(text="{% for", tokens={}, file=Path("a.jinja")), variables={}, today=None
        )
