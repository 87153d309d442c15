"""Test the stand-in's orchestrator with recording workers against a real one of the 1.2 line.

Both its answers and its requests must match.
"""

import asyncio
import itertools
import json
import re
import time
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
import yaml
from aiohttp import web

from tests.standin.deployments import free_port, running

CTX, GEN = "18001", "18003"
"""Ports in the recordings."""
BAD_JSON = b'{"model": "m", "prompt": }'
USAGE = {
    "prompt_tokens": 3,
    "total_tokens": 4,
    "completion_tokens": 1,
    "prompt_tokens_details": {"cached_tokens": 0},
}
PARAMS = {
    "request_type": "context_only",
    "first_gen_tokens": [11],
    "encoded_opaque_state": "b3BhcXVl",
    "ctx_dp_rank": 0,
}


class Recorder:
    """Recording workers: they note requests and replay the recorded responses."""

    def __init__(self, gen_s=0.0, clock_s=0.0):
        self.seen = {"ctx": [], "gen": []}
        self.runners = {}
        self.gen_s, self.clock_s = gen_s, clock_s
        self._contexts = itertools.count(1)

    @asynccontextmanager
    async def serving(self):
        ports = {}
        for name in ("ctx", "gen"):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", partial(self._answer, name))
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
            )
            await runner.setup()
            self.runners[name] = runner
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            ports[name] = runner.addresses[0][1]
        try:
            yield ports
        finally:
            for runner in self.runners.values():
                await runner.cleanup()

    async def _answer(self, name, request):
        body = await request.json() if request.can_read_body else None
        headers = dict(request.headers)
        one = {
            "worker": name,
            "method": request.method,
            "path": request.path,
            "headers": headers,
            "body": body,
        }
        self.seen[name].append(one)
        if request.path == "/steady_clock_offset" and request.method == "GET":
            await asyncio.sleep(self.clock_s)
            return web.json_response(
                {"receive_ts": time.monotonic(), "transmit_ts": time.monotonic()}
            )
        if request.path.startswith("/v1/"):
            return (
                self._context(request, body)
                if name == "ctx"
                else await self._generation(request, body)
            )
        return web.json_response([] if request.path == "/perf_metrics" else {})

    def _context(self, request, body):
        prompt = body.get("prompt")
        if prompt in ("ERR400", "ERR500"):
            return web.json_response({"object": "error", "message": "no"}, status=int(prompt[3:]))
        params = {**PARAMS, "ctx_request_id": next(self._contexts)}
        params["disagg_request_id"] = body["disaggregated_params"]["disagg_request_id"]
        if prompt == "STOPNOID":
            params["ctx_request_id"] = None
        said = (
            {"text": "A"}
            if "prompt" in body
            else {"message": {"role": "assistant", "content": "A"}}
        )
        reason = "stop" if isinstance(prompt, str) and prompt.startswith("STOP") else "length"
        choice = {"index": 0, **said, "finish_reason": reason}
        if prompt != "NODISAGG":
            choice["disaggregated_params"] = params
        whole = _head(body, "c") | {
            "choices": [choice],
            "usage": USAGE,
            "prompt_token_ids": [1, 2, 3],
        }
        return web.json_response(whole)

    async def _generation(self, request, body):
        await asyncio.sleep(self.gen_s)
        if body.get("user") == "GENERR400":
            return web.json_response({"object": "error", "message": "no"}, status=400)
        chat = "messages" in body
        if not body.get("stream"):
            said = (
                {"message": {"role": "assistant", "content": "A b c"}}
                if chat
                else {"text": "A b c"}
            )
            choice = {"index": 0, **said, "finish_reason": "length"}
            return web.json_response(_head(body, "g") | {"choices": [choice], "usage": USAGE})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        kind = "chat.completion.chunk" if chat else "text_completion"
        for text, reason in (("A", None), (" b", None), (" c", "length")):
            said = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": reason, **said}
            event = {
                "id": "x-1",
                "object": kind,
                "created": 1,
                "model": body["model"],
                "choices": [choice],
            }
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _head(body, name):
    chat = "messages" in body
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
        "object": kind,
        "created": 1,
        "model": body["model"],
    }


def comparable(request):
    """Return a request to a worker without ids, times, ports, and versions in header values."""
    body = json.loads(json.dumps(request["body"]))
    if body and "offset" in body:
        body["offset"] = 0.0
    for name in ("ctx_request_id", "disagg_request_id"):
        if body and (body.get("disaggregated_params") or {}).get(name):
            body["disaggregated_params"][name] = "ID"
    headers = {
        name: value
        for name, value in request["headers"].items()
        if name not in ("Content-Length", "Host")
    }
    headers["User-Agent"] = (
        "aiohttp" if "aiohttp" in headers["User-Agent"] else headers["User-Agent"]
    )
    headers["Accept-Encoding"] = headers["Accept-Encoding"].split(",")[0]
    return {"method": request["method"], "path": request["path"], "headers": headers, "body": body}


def _said(body, ports):
    for name, port in (("ctx", CTX), ("gen", GEN)):
        body = body.replace(f"localhost:{ports[name]}", f"localhost:{port}")
    if body.startswith(("data:", "#")) or not body:
        return body if body.startswith("data:") else ""
    parsed = json.loads(body)
    if "error" in parsed:
        parsed["error"] = parsed["error"].partition("\n\n  File")[0]
    if "version" in parsed:
        parsed["version"] = ""
    return parsed


async def _ask(base, client):
    started = time.monotonic()
    data = (
        None
        if client["method"] == "GET"
        else json.dumps(client["body"]).encode()
        if client["body"]
        else BAD_JSON
    )
    headers = {"Connection": "close", "Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:
        try:
            async with session.request(
                client["method"], base + client["path"], data=data, headers=headers
            ) as answer:
                body = (await answer.read()).decode()
                kind = answer.headers.get("Content-Type", "")
                return answer.status, kind, body, time.monotonic() - started
        except aiohttp.ClientError:
            return None, "", "", time.monotonic() - started


async def replay(folder, name, tmp_path, arguments, gen_s=0.0):
    """Replay every scenario of a recording and return their number."""
    file = folder / f"{name}.yaml"
    config = yaml.safe_load(file.read_text())
    scenarios = json.loads((folder / f"{name}.json").read_text())
    recorder, log_file = Recorder(gen_s), tmp_path / "orchestrator.log"
    async with recorder.serving() as ports:
        config |= {"port": free_port()}
        config["context_servers"]["urls"] = [f"localhost:{ports['ctx']}"]
        config["generation_servers"]["urls"] = [f"localhost:{ports['gen']}"]
        (tmp_path / "d.yaml").write_text(yaml.safe_dump(config))
        with running(
            ["disaggregated", "-c", str(tmp_path / "d.yaml"), *arguments], log_file
        ) as process:
            base = f"http://localhost:{config['port']}"
            for _ in range(300):
                assert process.poll() is None, log_file.read_text()
                if (await _ask(base, {"method": "GET", "path": "/health"}))[0] == 200:
                    break
                await asyncio.sleep(0.05)
            for scenario in scenarios:
                if scenario["scenario"] != "STARTUP":
                    for saw in recorder.seen.values():
                        saw.clear()
                    await _check_answer(scenario, base, ports)
                _check_requests(scenario, recorder)
    return len(scenarios)


async def _check_answer(scenario, base, ports):
    status, kind, body, seconds = await _ask(base, scenario["client"])
    wanted, where = scenario["response"], scenario["scenario"]
    assert status == wanted["status"], (where, body)
    headers = {name.lower(): value for name, value in wanted["headers"].items()}
    if status is not None:
        if body:
            assert kind.partition(";")[0] == headers["content-type"].partition(";")[0], where
        assert _said(body, ports) == _said(wanted["body"], {"ctx": int(CTX), "gen": int(GEN)}), (
            where
        )
    assert wanted["seconds"] - 0.5 < seconds < wanted["seconds"] + 2.0, where


def _check_requests(scenario, recorder):
    for name, seen in recorder.seen.items():
        wanted = [
            one
            for one in scenario.get(f"{name}_saw", [])
            if "urllib" not in one["headers"]["User-Agent"]
        ]
        assert [comparable(one) for one in seen] == [comparable(one) for one in wanted], (
            scenario["scenario"],
            name,
        )
    numbers = {
        one["body"]["disaggregated_params"]["disagg_request_id"]
        for seen in recorder.seen.values()
        for one in seen
        if one["body"] and "disaggregated_params" in one["body"]
    }
    assert len(numbers) <= 1, scenario["scenario"]
    assert all(2**40 <= number < 2**63 for number in numbers)


@pytest.mark.parametrize(("name", "count"), [("static", 46), ("genfirst", 4)])
async def test_every_recorded_scenario(name, count, shared, tmp_path):
    assert await replay(shared / "recorded_orchestrator", name, tmp_path, []) == count


@pytest.mark.slow
async def test_a_slow_generation_worker_as_recorded(shared, tmp_path):
    folder = shared / "recorded_orchestrator"
    assert await replay(folder, "request_timeout", tmp_path, ["-r", "2"], gen_s=60.0) == 3


class _Registered:
    """A recording worker that registers until it is killed, as the recorded ones did."""

    def __init__(self, base, name, port):
        self._base, role = base, ("CONTEXT", "GENERATION")[name == "gen"]
        worker_id = f"{role}-localhost:{port}-1795177740215-28771-735"
        self.value = {
            "worker_id": worker_id,
            "host": "localhost",
            "port": port,
            "role": int(name == "gen"),
        }
        self.key = f"/trtllm-disagg/t/workers/{worker_id}"

    async def live(self):
        entry = {"key": self.key, "value": json.dumps(self.value), "expire_time": -1, "ttl": 3}
        async with aiohttp.ClientSession() as session:
            async with session.post(
                f"{self._base}/set", json={**entry, "overwrite_if_exists": False}
            ) as answer:
                assert await answer.json() == {"result": True}
            while True:
                await asyncio.sleep(1.0)
                async with session.get(
                    f"{self._base}/expire", params={"key": self.key, "ttl": "3"}
                ) as answer:
                    assert await answer.json() == {"result": True}


async def replay_cluster(folder, tmp_path):
    steps = dict(json.loads((folder / "cluster.json").read_text()))
    config = yaml.safe_load((folder / "cluster.yaml").read_text())
    config |= {"port": free_port()}
    base = f"http://localhost:{config['port']}"
    config["disagg_cluster"]["cluster_uri"] = base
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(config))
    recorder = Recorder(clock_s=0.2)
    numbers = {}
    checked = 0

    async def step(name, path, body=None):
        nonlocal checked
        client = {"method": "POST" if body else "GET", "path": path, "body": body}
        status, _, said, seconds = await _ask(base, client)
        assert status == steps[name][0], (name, said)
        wanted = _plain(steps[name][2])
        for found, recorded in numbers.items():
            said = said.replace(found, recorded)
        assert _plain(said) == wanted, name
        assert steps[name][3] - 0.5 < seconds < steps[name][3] + 1.0, name
        checked += 1

    completion = {"model": "m", "max_tokens": 3, "temperature": 0, "prompt": "hello"}
    async with recorder.serving() as ports:
        numbers |= {str(ports["ctx"]): CTX, str(ports["gen"]): GEN}
        with running(
            ["disaggregated", "-c", str(tmp_path / "d.yaml")], tmp_path / "log"
        ) as process:
            for _ in range(300):
                assert process.poll() is None, (tmp_path / "log").read_text()
                if (await _ask(base, {"method": "GET", "path": "/version"}))[0] == 200:
                    break
                await asyncio.sleep(0.05)
            await step("health_before", "/health")
            await step("cluster_info_before", "/cluster_info")
            await step("completion_before", "/v1/completions", completion)
            workers = {name: _Registered(base, name, port) for name, port in ports.items()}
            tasks = {name: asyncio.create_task(workers[name].live()) for name in ("gen", "ctx")}
            state = {"method": "GET", "path": "/cluster_info"}
            while '"is_ready":true' not in (await _ask(base, state))[2]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await step("completion_ready", "/v1/completions", completion)
            await step("health_ready", "/health")
            await step("cluster_info_ready", "/cluster_info")
            await step("get_prefix", "/get_prefix?key_prefix=/trtllm-disagg/t/workers/&keys_only=0")
            await step("expire_unknown", "/expire?key=none&ttl=3")
            await step("get_unknown", "/get?key=none")
            while len(recorder.seen["ctx"]) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
            tasks["gen"].cancel()
            await recorder.runners["gen"].cleanup()
            await asyncio.sleep(0.5)
            await step("health_1s_after_gen_killed", "/health")
            await step("completion_1s_after_gen_killed", "/v1/completions", completion)
            await asyncio.sleep(4.0)
            await step("health_5s_after", "/health")
            await step("cluster_info_5s_after", "/cluster_info")
            await step("completion_5s_after", "/v1/completions", completion)
            tasks["ctx"].cancel()
            results = await asyncio.gather(*tasks.values(), return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in results), results
    for name, seen in recorder.seen.items():
        lines = (folder / f"{name}_requests.jsonl").read_text().splitlines()
        wanted = [one for one in map(json.loads, lines) if "out" not in one]
        assert [comparable(one) for one in seen] == [comparable(one) for one in wanted], name
    assert checked == len(steps)
    return checked


def _plain(said):
    """Return an answer without the variable parts of worker ids, with keys in any order.

    These parts are a time, a process and a random number.
    """
    text = re.sub(r"(:1800[13])-\d+-\d+-\d+", r"\1", said)
    parsed = json.loads(text) if text else ""
    if isinstance(parsed, dict) and isinstance(parsed.get("result"), dict):
        parsed["result"] = {key: json.loads(value) for key, value in parsed["result"].items()}
    return parsed


@pytest.mark.slow
async def test_service_discovery_as_recorded(shared, tmp_path):
    assert await replay_cluster(shared / "recorded_orchestrator", tmp_path) == 14
