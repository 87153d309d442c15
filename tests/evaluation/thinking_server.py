"""A scripted server that thinks, heeds sampling fields, and has faults that hide from probes."""

import hashlib
import math
import random
from dataclasses import dataclass, field

from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from tests.scripted_server import ScriptedServer, answer, fail

WORDS = ("red", "blue", "green", "white", "black", "grey", "pink")
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
SAMPLED = "a sampled answer"


@dataclass(kw_only=True)
class ThinkingServer:
    """Answers each chat with tokens that depend on the prompt and on the sampling alone.

    Three tokens of thoughts come first, closed by a tag, which the parser takes out of the text;
    `parser` None leaves them there, "late" takes the last token of an answer away. `template` is a
    text before the prompts, of as many tokens as words. Each request goes to the next of `workers`,
    of which the first `wrong` answer as another model, but for the probe of sampling defaults.
    `noise` and `numerics` are standard deviations in nats, drawn for each request and fixed for
    each token. `adds` are fields that the server adds to requests. `ignores` are fields that it
    does not heed: without the temperature it is greedy. With `stored`, a reply to the same messages
    is one of an earlier time. It refuses every request that follows the first `most`.
    """

    parser: str | None = "thoughts"
    template: str = ""
    workers: int = 1
    wrong: int = 0
    noise: float = 0.0
    numerics: float = 0.0
    adds: dict = field(default_factory=dict)
    ignores: tuple = ()
    stored: dict | None = None
    most: int | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    server: ScriptedServer = field(init=False)

    def __post_init__(self):
        self.server = ScriptedServer(self.reply, probed=True)

    @property
    def probes(self):
        """Return the requests for log-probabilities."""
        return [body for body in self.server.bodies if body.get("logprobs")]

    def reply(self, request):
        """Answer a request."""
        if self.most is not None and request.number > self.most:
            return fail(500, "out of order")
        prompt, worker = request.prompt, request.number % self.workers
        model = "wrong" if worker < self.wrong and prompt != PROMPT else "right"
        body = {**self.adds, **request.body}
        at = self.template + prompt + _sampling(body, self.ignores)
        if self.stored is not None and body.get("logprobs") and prompt in self.stored:
            return self._tell(request, self.stored[prompt])
        tokens = self._write(model, at, request.max_tokens)
        if self.stored is not None and body.get("logprobs"):
            self.stored[prompt] = tokens
        return self._tell(request, tokens)

    def _write(self, model, at, most):
        ends = 6 + int(6 * _uniform("end", at))
        tokens = []
        for place in range(min(ends, most)):
            if place == 3:
                tokens.append(("</think>", {"</think>": -1e-5, "red": -12.0}))
                continue
            words = sorted(WORDS, key=lambda word: _uniform(word, at, str(place), model))[:5]
            shares = [0.5, 0.2, 0.1, 0.1, 0.05]
            top = {
                f"{word} ": math.log(share)
                + self.numerics * (_uniform("n", word, at, str(place)) - 0.5)
                + (self.rng.gauss(0, self.noise) if self.noise else 0.0)
                for word, share in zip(words, shares, strict=True)
            }
            tokens.append((f"{words[0]} ", top))
        return tokens, len(tokens) < ends

    def _tell(self, request, told):
        tokens, cut = told
        shown = tokens[:-1] if self.parser == "late" and not cut else tokens
        said = "".join(text for text, _ in shown)
        thoughts, _, text = said.partition("</think>")
        message = {"role": "assistant", "content": text, "reasoning_content": thoughts}
        if self.parser is None:
            message = {"role": "assistant", "content": said}
        part = "delta" if request.body.get("stream") else "message"
        choice = {part: message}
        if request.body.get("logprobs"):
            choice["logprobs"] = {"content": [_list(text, top) for text, top in tokens]}
        usage = len(request.prompt) // 4 + len(self.template.split()), len(tokens)
        return answer(said, choice=choice, usage=usage, finish="length" if cut else "stop")


def _sampling(body, ignores):
    """Return the part of a seed that sampling fields are: nothing for a greedy answer."""
    known = {name: value for name, value in body.items() if name not in ignores}
    temperature = 0 if "temperature" in ignores else known.get("temperature", 1.0)
    greedy = temperature == 0 or known.get("top_p", 1.0) < 0.01
    greedy = greedy or known.get("min_p", 0) == 1 or known.get("top_k", 0) == 1
    told = "" if greedy else f"{SAMPLED} {temperature} {known.get('seed')}"
    for name, neutral in NEUTRAL.items():
        if (value := known.get(name, neutral)) != neutral:
            told += f" {name} {value}"
    return told


def _list(text, top):
    likely = [{"token": one, "logprob": value} for one, value in top.items()]
    return {"token": text, "logprob": top[text], "top_logprobs": likely}


def _uniform(*parts):
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64
