"""Foreign run folders need approval for what their plans run and reach; your own do not."""

import json
import shutil
import socket

import pytest
import yaml

from tests.cli.command import in_a_process, serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

ASK = "run --launcher simulated --set launcher.accuracy=1.0 --model m --tasks word_problems"
LIMITED = "--limit 3 --no-reference"
DONE = 3  # the run has no reference


class Trap:
    """A file that appears if a part of a plan is run, and a socket that counts connections."""

    def __init__(self, folder, listening):
        self.marker, self._listening = folder / "MARKER", listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        self.command = ["/bin/sh", "-c", f"echo run >> {self.marker}; exit 1; #"]

    def connections(self):
        count = 0
        while True:
            try:
                self._listening.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1

    def untouched(self):
        return not self.marker.exists() and self.connections() == 0


@pytest.fixture
def trap(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        found = Trap(tmp_path, listening)
        (programs := tmp_path / "programs").mkdir()
        for name in (
            "docker",
            "podman",
            "srun",
            "scontrol",
            "squeue",
            "trtllm-serve",
            "llama-server",
            "transformers",
            "vllm",
        ):
            (programs / name).write_text(f"#!/bin/sh\necho {name} >> {found.marker}\nexit 1\n")
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        yield found


@pytest.fixture(scope="module")
def finished(tmp_path_factory, simulated_here):
    """Return a finished run of the user."""
    out = tmp_path_factory.mktemp("own") / "out"
    serve_eval(f"{ASK} {LIMITED} --header 'X-Team: evals' -o {out}", exits=DONE)
    return out


def _changed(folder, change):
    content = read_json(folder / "plan.json")
    change(content["plan"])
    (folder / "plan.json").write_text(json.dumps(content))


def _foreign(finished, to, change, *, answers=False):
    """Copy the run with a changed plan, as another user would hand it on."""
    shutil.copytree(
        finished, to, ignore=None if answers else shutil.ignore_patterns("samples", "scores")
    )
    _changed(to, change)
    return to


def _launched(name, **options):
    def change(plan):
        plan["launcher"] = {"name": name, "options": options}

    return change


def _reached(**fields):
    def change(plan):
        plan["connection"].update(fields)

    return change


SH = ["/bin/sh", "-c", "MARK"]
FIELDS = [
    ("launcher.base_url", "URL", _launched("external", base_url="URL")),
    ("launcher.base_url", "http://localhost:8000/v1", _launched("external")),
    ("connection.api_key_env", "AWS_SECRET", _reached(api_key_env="AWS_SECRET")),
    ("connection.headers", {"X-A": "${SECRET_XYZ}"}, _reached(headers={"X-A": "${SECRET_XYZ}"})),
    ("connection.proxy", "URL", _reached(proxy="URL")),
    ("connection.ca_bundle", "/evil.pem", _reached(ca_bundle="/evil.pem")),
    ("allow_hub", True, lambda plan: plan.update(allow_hub=True)),
    ("launcher.command", SH, _launched("trtllm", command=SH)),
    (
        "launcher.env",
        {"LD_PRELOAD": "/evil.so"},
        _launched("trtllm", env={"LD_PRELOAD": "/evil.so"}),
    ),
    ("launcher.pass_env", ["AWS_SECRET"], _launched("trtllm", pass_env=["AWS_SECRET"])),
    (
        "launcher.extra_args",
        ["--a", "\x1b[2K\u202eb"],
        _launched("trtllm", extra_args=["--a", "\x1b[2K\u202eb"]),
    ),
    ("launcher.config", "/evil.yaml", _launched("trtllm", config="/evil.yaml")),
    ("launcher.model", "evil/model", _launched("trtllm", model="evil/model")),
    ("launcher.host", "0.0.0.0", _launched("trtllm", host="0.0.0.0")),
    ("launcher", "trtllm", _launched("trtllm")),
    ("launcher.command", SH, _launched("trtllm_disaggregated", command=SH)),
    (
        "launcher.context_servers",
        {"extra_args": ["--x"]},
        _launched("trtllm_disaggregated", context_servers={"extra_args": ["--x"]}),
    ),
    ("launcher.image", "evil", _launched("container", image="evil")),
    (
        "launcher.run_args",
        ["--privileged"],
        _launched("container", image="evil", run_args=["--privileged"]),
    ),
    ("launcher.mounts", ["/:/host"], _launched("container", image="evil", mounts=["/:/host"])),
    (
        "launcher.trtllm",
        {"command": SH},
        _launched("container", image="evil", trtllm={"command": SH}),
    ),
    ("launcher.wrapper", "evil", _launched("slurm", wrapper="evil")),
    ("launcher.srun_args", ["--prolog=/evil"], _launched("slurm", srun_args=["--prolog=/evil"])),
    ("launcher.container", {"image": "evil"}, _launched("slurm", container={"image": "evil"})),
    ("launcher.command", SH, _launched("llama_cpp", command=SH)),
    ("launcher.command", SH, _launched("transformers_serve", command=SH)),
    ("launcher.command", SH, _launched("vllm", command=SH)),
    (
        "launcher.speculative",
        {"model": "evil/model"},
        _launched("vllm", speculative={"model": "evil/model"}),
    ),
    ("launcher.command", SH, _launched("vllm_disaggregated", command=SH)),
    (
        "launcher.connector_config",
        {"kv_connector_module_path": "evil"},
        _launched("vllm_disaggregated", connector_config={"kv_connector_module_path": "evil"}),
    ),
    ("launcher.kv_folder", "/evil", _launched("vllm_disaggregated", kv_folder="/evil")),
    (
        "launcher.generation_servers",
        {"extra_args": ["--x"]},
        _launched("vllm_disaggregated", generation_servers={"extra_args": ["--x"]}),
    ),
    ("launcher.weights", "/evil", _launched("embedded", weights="/evil")),
]


def _filled(value, trap):
    """Return the value with the trap's URL and command filled in."""
    text = (
        json.dumps(value)
        .replace('"URL"', json.dumps(trap.url))
        .replace('"MARK"', json.dumps(trap.command[-1]))
    )
    return json.loads(text)


@pytest.mark.parametrize(
    ("field", "value", "change"), FIELDS, ids=[f"{n}-{row[0]}" for n, row in enumerate(FIELDS)]
)
def test_a_folder_of_another_user_runs_and_reaches_nothing(
    finished, tmp_path, trap, field, value, change
):
    def hostile(plan):
        plan["connection"]["headers"] = {}
        change(plan)
        plan.update(_filled(plan, trap))

    folder = _foreign(finished, tmp_path / "hostile", hostile)
    done = serve_eval(
        f"run --resume {folder}",
        AWS_SECRET="aws",
        SECRET_XYZ="xyz",
        exits=2,
        tells=f"the plan in {folder} was not saved there by you",
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(f"  {field}: ")]
    assert line.endswith(f" {json.dumps(_filled(value, trap))}")
    assert done.stderr.isascii()
    assert "\x1b" not in done.stderr
    assert "--trust-plan" in done.stderr
    assert trap.untouched()


def test_what_a_plan_does_is_told_whole(finished, tmp_path, trap):
    def hostile(plan):
        _launched("external", base_url=trap.url)(plan)
        _reached(api_key_env="AWS_SECRET", headers={"X-A": "Token ${SECRET_XYZ}"})(plan)

    folder = _foreign(finished, tmp_path / "hostile", hostile)
    done = serve_eval(f"run --resume {folder}")
    assert (
        f'  launcher.base_url: send the prompts, and the key in AWS_SECRET, to "{trap.url}"\n'
        in done.stderr
    )
    assert (
        '  connection.api_key_env: read the variable and send it as the key: "AWS_SECRET"\n'
        in done.stderr
    )
    assert "  connection.headers: send, with the value of SECRET_XYZ, {" in done.stderr
    mine = serve_eval(f"run --resume {folder} --base-url http://127.0.0.1:9/v1 --header 'X-A: me'")
    assert "connection.api_key_env" in mine.stderr
    assert not {"launcher.base_url", "connection.headers"} & {
        *mine.stderr.replace(":", " ").split()
    }
    assert trap.untouched()


def test_a_plan_that_is_trusted_runs_and_reaches_what_it_says(finished, tmp_path, trap):
    runs = _foreign(finished, tmp_path / "runs", _launched("trtllm", command=trap.command))
    assert serve_eval(f"run --resume {runs} --trust-plan").returncode in (2, 4)
    assert trap.marker.read_text().startswith("run\n")
    looked_at = serve_eval(
        "run --dry-run --resume", _foreign(finished, tmp_path / "x", lambda plan: None)
    )
    assert looked_at.returncode in (0, DONE), "a dry run sends nothing and shows what is there"


def test_judges_of_cases_are_reached_too(finished, tmp_path, trap):
    judge = {"base_url": trap.url, "model": "j", "name": "fair", "api_key_env": "AWS_SECRET"}
    cases = [{"case": "town:1", "input": {"prompt": "Which town?"}, "expected": "Bonn"}]
    content = {"towns": {"scorer": {"judge": {"judges": [judge]}}, "cases": cases}}
    (file := tmp_path / "towns.yaml").write_text(yaml.safe_dump(content))
    task = {"name": "cases:towns", "options": {"path": [str(file)]}}
    folder = _foreign(finished, tmp_path / "hostile", lambda plan: plan.update(tasks=[task]))
    done = serve_eval(f"run --resume {folder}", AWS_SECRET="aws", exits=2)
    where = "  cases:towns.scorer, judge fair"
    assert (
        f'{where}.base_url: send the answers, and the key in AWS_SECRET, to "{trap.url}"\n'
        in done.stderr
    )
    assert (
        f'{where}.api_key_env: read the variable and send it as the key: "AWS_SECRET"\n'
        in done.stderr
    )
    assert trap.untouched()


def test_a_run_of_ones_own_goes_on_until_it_is_changed_or_copied(finished, tmp_path):
    serve_eval(f"run --resume {finished}", exits=DONE)
    out = tmp_path / "out"
    serve_eval(f"{ASK} {LIMITED} --header 'X-Team: evals' -o {out}", exits=DONE)
    _changed(out, _reached(headers={"X-Team": "others"}))
    serve_eval(
        f"run --resume {out}", exits=2, tells='  connection.headers: send {"X-Team": "others"}\n'
    )
    serve_eval(f"run --resume {out} --header 'X-Team: evals'", exits=DONE)
    saved = read_json(out / "plan.json")["plan"]["connection"]["headers"]
    assert saved == {"X-Team": "evals"}, "later commands must use what was approved"
    serve_eval(f"run --resume {out}", exits=DONE)
    moved = shutil.move(out, tmp_path / "moved")
    serve_eval(f"run --resume {moved}", exits=2)
    serve_eval(f"run --resume {moved} --trust-plan", exits=DONE)
    assert serve_eval(f"run --resume {moved}").returncode == DONE, (
        "an approved folder must not ask again"
    )
    content = read_json(tmp_path / "moved/plan.json")
    del content["signature"]  # as in folders of earlier versions
    (tmp_path / "moved/plan.json").write_text(json.dumps(content))
    serve_eval(f"run --resume {moved}", exits=2)


def test_links_in_a_folder_of_another_user_are_not_written_through(finished, tmp_path):
    (mine := tmp_path / "mine").write_text("mine\n")
    folder = _foreign(finished, tmp_path / "copy", _reached(headers={}), answers=True)
    for name in ("lock", "report.json.partial", "samples/word_problems.jsonl"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(mine)
    serve_eval(
        f"run --resume {folder}",
        exits=2,
        tells=f'  samples/word_problems.jsonl: write through this link to "{mine}"\n',
    )
    for command in ("judge", "judge --rescore"):
        serve_eval(f"{command} {folder}")
    assert serve_eval(f"run --resume {folder} --trust-plan").returncode == 2, (
        "a linked lock must be refused, even with --trust-plan"
    )
    assert mine.read_text() == "mine\n"


@pytest.mark.parametrize(
    "command", ["judge RUN", "judge --rescore RUN", "runs export RUN", "show RUN SAMPLE --capsule"]
)
def test_commands_that_read_do_not_write_where_a_link_leads(finished, tmp_path, command):
    (mine := tmp_path / "mine").mkdir()
    (mine / "word_problems.jsonl").write_text("mine\n")
    folder = _foreign(finished, tmp_path / "copy", _reached(headers={}), answers=True)
    shutil.rmtree(folder / "scores")
    for name in ("scores", "lm-eval", "capsules"):
        (folder / name).symlink_to(mine)
    sample = json.loads((folder / "samples/word_problems.jsonl").read_text().splitlines()[0])["id"]
    given = {"RUN": folder, "SAMPLE": sample}
    serve_eval(
        *(given.get(word, word) for word in command.split()),
        exits=2,
        tells=f'scores leads to "{mine}"',
    )
    assert [file.read_text() for file in mine.rglob("*")] == ["mine\n"]
    assert serve_eval(f"run --resume {folder} --dry-run").returncode in (0, DONE), (
        "a dry run writes nothing"
    )
    shutil.copytree(folder, tmp_path / "followed")  # the copy follows the links
    serve_eval(f"judge {tmp_path}/followed", exits=DONE)


def test_files_that_a_folder_of_another_user_calls_logs_are_neither_read_nor_written(
    finished, tmp_path
):
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    (mine := tmp_path / ".env").write_text(f"2026-11-23 01:00:00 ERROR OPENAI_API_KEY={key}\n")
    before = mine.read_text()
    folder = _foreign(finished, tmp_path / "copy", _reached(headers={}))
    sessions = read_json(folder / "environment.json")
    sessions[-1]["endpoint"]["info"] |= {"log_file": str(mine), "logs": {"a": str(mine)}}
    (folder / "environment.json").write_text(json.dumps(sessions))
    serve_eval(f"run --resume {folder}", OPENAI_API_KEY=key, exits=DONE)
    assert mine.read_text() == before
    assert "ERROR" not in serve_eval(f"diagnose {folder}").stdout


def test_a_plan_without_anything_to_ask_for_goes_on_anywhere(finished, tmp_path):
    folder = _foreign(finished, tmp_path / "copy", _reached(headers={}))
    serve_eval(f"run --resume {folder}", exits=DONE)


@pytest.mark.parametrize("how", ["nowhere", "readable", "of another"])
def test_without_a_key_of_ones_own_it_is_asked(finished, tmp_path, how):
    state = tmp_path / "state"
    if how != "nowhere":
        (state / "serve-eval").mkdir(parents=True)
        (state / "serve-eval/key").write_bytes(b"k" * 32)
        (state / "serve-eval/key").chmod(0o644 if how == "readable" else 0o600)
    place = "/proc/nowhere" if how == "nowhere" else str(state)
    asked = serve_eval(f"run --resume {finished}", XDG_STATE_HOME=place, exits=2)
    assert (f"No key can be kept in {place}/serve-eval" in asked.stderr) is (how != "of another")
    serve_eval(f"run --resume {finished} --trust-plan", XDG_STATE_HOME=place, exits=DONE)
    serve_eval(f"run --resume {finished} --trust-plan", exits=DONE)


def test_commands_that_read_a_folder_run_and_reach_nothing(finished, tmp_path, trap):
    def hostile(plan):
        _launched("external", base_url=trap.url)(plan)
        _reached(proxy=trap.url, api_key_env="AWS_SECRET")(plan)
        plan["allow_hub"] = True

    folder = _foreign(finished, tmp_path / "hostile", hostile, answers=True)
    around = {"AWS_SECRET": "aws", "HF_ENDPOINT": trap.url}
    for command in (
        ("judge", folder),
        ("judge", "--rescore", folder, "-o", tmp_path / "scored"),
        ("runs", "export", folder, "-o", tmp_path / "exported"),
        ("references", "register", folder, "--references-dir", tmp_path / "references"),
        ("diagnose", folder),
        ("compare", folder, folder, "-o", tmp_path / "compared"),
    ):
        done = serve_eval(*command, **around)
        assert "unexpected" not in done.stderr, done.stderr
        assert trap.untouched(), command
    assert "signature" not in read_json(tmp_path / "scored/plan.json")
    serve_eval(
        f"run --resume {tmp_path}/scored", **around, exits=2, tells="was not saved there by you"
    )


def test_other_commands_that_ask_ask_too(finished, tmp_path, trap):
    folder = _foreign(
        finished,
        tmp_path / "hostile",
        _reached(proxy=trap.url, api_key_env="AWS_SECRET"),
        answers=True,
    )
    for command in (
        ("compare", folder, "127.0.0.1:9"),
        ("compare", "127.0.0.1:9", folder),
        ("check", "workers", folder),
    ):
        more = ("-o", tmp_path / "out") if command[0] == "compare" else ()
        serve_eval(
            *command,
            *more,
            AWS_SECRET="aws",
            exits=2,
            tells=f'connection.proxy: send everything through "{trap.url}"',
        )
    assert trap.untouched()


def test_attribute_asks_nobody_that_a_folder_was_made_to_name(finished, tmp_path, trap):
    out = tmp_path / "out"
    serve_eval(f"{ASK} {LIMITED} -o {out}", exits=DONE)
    sessions = read_json(out / "environment.json")
    assert sessions[0]["signature"]
    sessions[0]["endpoint"]["base_url"] = trap.url
    (out / "environment.json").write_text(json.dumps(sessions))
    serve_eval(
        f"check workers {out}",
        exits=2,
        tells=f'environment.json: send prompts of the run to "{trap.url}"',
    )
    assert trap.untouched()


def test_a_suite_of_another_user_asks_for_each_of_its_runs(tmp_path, trap):
    plan = {
        "launcher": {"name": "simulated", "accuracy": 1.0},
        "model": "m",
        "tasks": ["word_problems"],
        "limit": 2,
    }
    run = {
        **plan,
        "name": "one",
        "no_reference": True,
        "connection": {"headers": {"X-Team": "evals"}},
    }
    (file := tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "plans": [run]}))
    out = tmp_path / "out"
    serve_eval(f"run {file} -o {out}", exits=DONE)
    serve_eval(f"run --resume {out}", exits=DONE)
    content = read_json(out / "suite.json")
    _launched("trtllm", command=trap.command)(content["suite"]["runs"][0]["plan"])
    (out / "suite.json").write_text(json.dumps(content))
    asked = serve_eval(f"run --resume {out} --rerun all", exits=2)
    assert f"  one: launcher.command: run {json.dumps(trap.command)}\n" in asked.stderr
    assert trap.untouched()
    shutil.rmtree(out / "runs")
    serve_eval(f"run --resume {out} --trust-plan")
    assert trap.marker.exists()


@pytest.mark.parametrize("name", ["../../victim", "..", "", "/VICTIM"])
def test_a_suite_of_another_user_writes_to_its_own_folder_alone(tmp_path, name):
    run = {
        "name": "a",
        "launcher": "simulated",
        "model": "m",
        "tasks": ["word_problems"],
        "limit": 3,
    }
    (file := tmp_path / "suite.yaml").write_text(
        yaml.safe_dump({"name": "s", "plans": [{**run, "no_reference": True}]})
    )
    out = tmp_path / "out"
    serve_eval(f"run {file} -o {out}", exits=DONE)
    content = read_json(out / "suite.json")
    content["suite"]["runs"][0]["name"] = name.replace("/VICTIM", str(tmp_path / "victim"))
    (out / "suite.json").write_text(json.dumps(content))
    before = sorted(tmp_path.rglob("*"))
    serve_eval(
        f"run --resume {out} --trust-plan", exits=2, tells="cannot be used as the name of a folder"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_process_of_its_own_keeps_its_secrets(finished, tmp_path, trap):
    folder = _foreign(finished, tmp_path / "hostile", _launched("trtllm", command=trap.command))
    done = in_a_process(
        f"run --resume {folder}", OPENAI_API_KEY="sk-real", SECRET_XYZ="xyz", exits=2
    )
    assert not {"sk-real", "xyz"} & {*done.stderr.split()}
    assert trap.untouched()
