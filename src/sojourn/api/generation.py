"""A request of the engine with its text: what every surface runs turns with. Tokens in, deltas out, one end.

A `Generation` is left exactly once, by its `async with`: whatever has not ended by then is undone.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sojourn.api import wire
from sojourn.api.engine_link import EngineLink, Feed
from sojourn.api.text.stop_strings import TextStream
from sojourn.core.step import Sample
from sojourn.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What came since the last one; `samples` only where log-probabilities were asked for."""

    text: str
    token_ids: list[int]
    samples: list[Sample]


class Generation:
    """A started request. Iterate `pieces` to its end; then `end` is set."""

    def __init__(self, link: EngineLink, started: wire.Started, feed: Feed, text: TextStream) -> None:
        self._link = link
        self._feed = feed
        self._text = text
        self.started = started
        self.output_ids: list[int] = []
        self.samples: list[Sample] = []
        self.parts: list[str] = []

    @classmethod
    async def start(
        cls, link: EngineLink, command: wire.Start, tokenizer: Tokenizer, text: TextStream | None = None
    ) -> "Generation":
        """`text` shows the tokens in another way than the command's stops would have it."""
        shown = text or TextStream(tokenizer, command.stops, skip_special=command.skip_special)
        started, feed = await link.start(command)
        return cls(link, started, feed, shown)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def cached_tokens(self) -> int:
        """Known from the first piece on."""
        return self._feed.cached_tokens

    @property
    def known(self) -> list[Sample]:
        """Tokens of the prompt with their log-probabilities, as asked for; all of them from the first piece on."""
        return self._feed.known

    @property
    def has_ended(self) -> bool:
        return self._feed.end is not None

    @property
    def has_failed(self) -> bool:
        """The engine stopped under it."""
        return self._feed.has_failed

    @property
    def end(self) -> wire.Ended:
        assert self._feed.end is not None, "the generation has not ended"
        return self._feed.end

    async def pieces(self) -> AsyncIterator[Piece]:
        """As they come, merged where the reader is slower. Raises EngineDownError if the engine stops."""
        while (taken := await self._feed.take()) is not None:
            ids, samples = taken
            text = self._text.feed(ids)
            self.output_ids += ids
            self.samples += samples
            self.parts.append(text)
            yield Piece(text, ids, samples)
        if rest := self._text.flush():
            self.parts.append(rest)
            yield Piece(rest, [], [])

    async def finish(self) -> wire.Ended:
        """Read to the end, without showing anything on the way."""
        async for _ in self.pieces():
            pass
        return self.end

    def interrupt(self) -> None:
        """Ask for the end now: what was said stands. The last pieces still come."""
        self._link.end(self._feed.call, undo=False)

    def abort(self) -> None:
        """Ask for the end now: all of it is undone. The last pieces and the end still come."""
        self._link.end(self._feed.call, undo=True)

    def leave(self) -> None:
        """Nobody reads on. A request that still runs is undone."""
        self._link.forget(self._feed)
