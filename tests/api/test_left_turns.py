"""A client that goes away at the very end of its turn: what the front remembers of the session is what the engine has."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Message
from tests.api.test_link import EngineHere
from tests.api.test_two_steps import CARD_WITH_TEXT, Caller, story


class Stuck(Caller):
    """Takes the first delta and nothing more."""

    async def _send(self, message: Message) -> None:
        await super()._send(message)
        if self.has_delta.is_set():
            await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("number", [0, 1])
def test_a_turn_that_ended_while_its_last_words_were_on_the_way_stands(tmp_path: Path, number: int) -> None:
    """The next turn may be numbered after it, and the turn itself is told again."""
    address = f"ipc://{tmp_path}/engine"
    engine = EngineHere(address, card=CARD_WITH_TEXT)

    async def tell(http: httpx.AsyncClient, app: ASGIApp) -> None:
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        path = f"/v1/sessions/{session}/turns"
        body = {"token_ids": [5, 6], "max_tokens": 4, "ignore_eos": True, "temperature": 0, "turn": 0}
        caller = Stuck(app, path, {**body, "stream": True})
        running = asyncio.create_task(caller.call())
        await caller.has_delta.wait()
        while (await http.get(f"/v1/sessions/{session}")).json()["turns"] == 0:
            pass
        caller.leave()
        await running
        answer = await http.post(path, json={**body, "turn": number})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["turn"], answer.json()["replayed"]) == (number, number == 0)

    story(tmp_path, engine, address, tell)
