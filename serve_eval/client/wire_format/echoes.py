"""Is an answer the last one of its connection once more?

A proxy that answers twice puts the second answer before the one to the next request on that
connection, and from then on every sample would be scored with the answer of another. HTTP/1.1
cannot tell; the ids of the answers can.
"""

from __future__ import annotations

from serve_eval.client.channel import Channel
from serve_eval.client.wire_format.wire import Said


class Echoes:
    """Servers that give every answer the same id are noticed by it, and no longer asked."""

    def __init__(self) -> None:
        self._newest: tuple[str, Channel] | None = None
        self._ids_tell = True

    def is_echo(self, channel: Channel, said: Said) -> bool:
        """Whether a connection gave its last answer again, by its id, its text and its calls of
        tools.
        """
        if said.id is None or not self._ids_tell:
            return False
        text = hash((said.text, said.tool_calls))
        if said.id == channel.last_id and text == channel.last_text:
            self._newest = said.id, channel
            return True
        elsewhere = (
            self._newest is not None
            and self._newest[0] == said.id
            and self._newest[1] is not channel
        )
        if elsewhere or said.id == channel.last_id:
            self._ids_tell = False
        self._newest, channel.last_id, channel.last_text = (said.id, channel), said.id, text
        return False
