"""The files of the embedded model as a side of an audit, and a server that reads by them."""

import json
import shutil
from datetime import date

from serve_eval.evidence.prompt_tokens import LocalTokenizer
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.protocol.chat_template import renderer
from serve_eval.schema import Message
from tests.scripted_server import ScriptedServer, answer, json_reply, models

TODAY = date(2026, 11, 26)
TEMPLATE = json.loads((WEIGHTS / "tokenizer_config.json").read_text())["chat_template"]


class EmbeddedTokenizer:
    """Reads tokenizer.json as the embedded model's server does; adds `bos` to texts if given."""

    def __init__(self, folder, *, bos=None):
        self._tokenizer, self._bos = Tokenizer(folder / "tokenizer.json"), bos
        content = json.loads((folder / "tokenizer.json").read_text())
        self._ids = content["model"]["vocab"] | self._tokenizer.special
        self._pieces = {number: piece for piece, number in self._ids.items()}

    def encode(self, text, *, add_special_tokens):
        first = [self._ids[self._bos]] if self._bos and add_special_tokens else []
        return first + self._tokenizer.encode(text)

    def piece(self, token):
        return self._pieces.get(token)

    def find(self, piece):
        return self._ids.get(piece)


def make_folder(path, template=TEMPLATE, **config):
    """Copy the embedded model's tokenizer, with another template and settings."""
    path.mkdir(exist_ok=True)
    shutil.copy(WEIGHTS / "tokenizer.json", path)
    given = config if template is None else {"chat_template": template, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(given))
    return path


def local_side(folder, *, bos=None):
    """Return the side of a folder, which renders in this process."""
    tokenizer = EmbeddedTokenizer(folder, bos=bos)
    return LocalTokenizer(folder, tokenizer, today=TODAY, rendering=renderer)


def serve_folder(
    folder,
    *,
    bos=None,
    counted_more=0,
    ids=True,
    chats_only=False,
    answer_tokens=1,
):
    """Serve the ids that a folder gives, without their texts.

    Answers count `counted_more` tokens more, and `answer_tokens` of their own; without `ids` no
    route gives them.
    """
    local = local_side(folder, bos=bos)

    async def respond(request):
        messages = request.body.get("messages")
        prompt = request.body.get("prompt") or tuple(Message(**one) for one in messages)
        found = list((await local.read(prompt)).ids or ())
        if request.path == "/tokenize":
            return json_reply({"count": len(found), "tokens": found if ids else []})
        made = min(answer_tokens, request.max_tokens) if answer_tokens > 1 else 1
        return answer("x", usage=(len(found) + counted_more, made))

    paths = ["/tokenize", "/v1/chat/completions"] + ([] if chats_only else ["/v1/completions"])
    return ScriptedServer(respond, paths=paths, routes={"/v1/models": lambda _: models("m")})
