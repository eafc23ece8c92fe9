"""The Python client against a running server, waiting and awaiting: the same calls with the same answers."""

import asyncio

import pytest
from tests.support.server import Server

from sojourn.client.aio import AsyncClient
from sojourn.client.models import ApiError, ConnectionFailedError, SojournClientError, Started
from sojourn.client.sync import Client

pytestmark = pytest.mark.http_scenario


def test_a_conversation(server: Server) -> None:
    with Client(server.url) as client, client.open_session(timeout=600, priority=3) as session:
        assert client.is_ready()
        ahead = session.append("What is")
        assert (ahead.turn, ahead.usage.completion_tokens) == (0, 0)
        first = session.turn(" this?", max_tokens=5, temperature=0.0, logprobs=1)
        assert (first.turn, len(first.token_ids)) == (1, 5)
        assert first.logprobs is not None
        assert first.logprobs[0].top[0][0] == first.token_ids[0]
        with session.stream("And that?", max_tokens=6, temperature=0.0, logprobs=2) as stream:
            deltas = list(stream)
        assert "".join(delta.text for delta in deltas) == stream.turn.text
        assert stream.started == Started(turn=2, prompt_tokens=stream.turn.usage.prompt_tokens)
        said = [entry for delta in deltas for entry in delta.logprobs]
        assert stream.turn.logprobs == tuple(said)
        assert [entry.token_id for entry in said] == list(stream.turn.token_ids)
        assert stream.turn.cache.source == "session"
        assert session.num_turns == 3
        other = session.fork(turns=2)
        assert other.turn("And that?", max_tokens=6, temperature=0.0).token_ids == stream.turn.token_ids
        assert session.rewind(turns=1).turns == 1
        assert session.turn("!", max_tokens=1).turn == 1
        assert {info.id for info in client.sessions()} == {session.id, other.id}
        assert client.session(other.id).num_turns == 3
        assert session.info().pages["full"].own >= 1
        assert (session.info().tenant, session.info().priority) == ("", 3)
        assert not session.interrupt()
        assert other.close().deferred is False
        assert client.pools()["identity"] is True
        client.flush_pools()
        missed = session.turn("?", max_tokens=1).cache
        assert (missed.cached_tokens, missed.source) == (0, "none")
        assert missed.miss_reason is not None
    with Client(server.url) as client, pytest.raises(ApiError) as refusal:
        client.session(session.id)
    assert (refusal.value.status, refusal.value.param) == (404, "session_id")
    assert refusal.value.request_id


def test_leaving_a_stream_undoes_the_turn(server: Server) -> None:
    with Client(server.url) as client, client.open_session() as session:
        with session.stream("Long", max_tokens=1500) as stream:
            next(iter(stream))
            with pytest.raises(SojournClientError, match="not ended"):
                _ = stream.turn
        assert session.num_turns == 0
        assert session.turn("Short", max_tokens=1, wait=True).turn == 0


def test_errors_say_what_is_wrong(server: Server) -> None:
    with Client(server.url) as client, client.open_session() as session:
        with pytest.raises(ApiError, match="max_tokens") as refusal:
            session.turn("Hello", max_tokens=0)
        assert (refusal.value.status, refusal.value.param) == (400, "max_tokens")
        stream = session.stream("Hello", temperature=-1)
        with pytest.raises(ApiError, match="temperature"), stream:
            pass
    nobody = Client("http://127.0.0.1:9")
    assert not nobody.is_ready()
    with pytest.raises(ConnectionFailedError):
        nobody.sessions()
    nobody.close()


def test_a_session_leaves_as_a_file_and_comes_in_again(server: Server) -> None:
    with Client(server.url) as client, client.open_session() as session:
        session.turn("Hello", max_tokens=5, temperature=0.0)
        data = session.export()
        with client.import_session(data) as twin, client.import_session(data, "named") as named:
            assert (named.id, twin.num_turns, named.info().killed) == ("named", 1, None)
            turns = [one.turn("And?", max_tokens=9, temperature=0.0) for one in (session, twin, named)]
            assert len({turn.token_ids for turn in turns}) == 1
            with pytest.raises(ApiError) as refusal:
                client.import_session(data, "named")
            assert refusal.value.status == 409
            with pytest.raises(ApiError) as refusal:
                client.import_session(data[:-1])
            assert (refusal.value.status, refusal.value.code) == (400, "invalid_file")


def test_the_same_awaited(server: Server) -> None:
    async def converse() -> None:
        async with AsyncClient(server.url) as client, await client.open_session() as session:
            assert await client.is_ready(wait=5)
            await session.append("What is")
            first = await session.turn(" this?", max_tokens=5, temperature=0.0)
            async with session.stream("And that?", max_tokens=6, temperature=0.0) as stream:
                text = "".join([delta.text async for delta in stream])
            assert text == stream.turn.text
            assert first.turn == 1
            other = await session.fork(turns=2)
            turns = await asyncio.gather(
                other.turn("One", max_tokens=9, temperature=0.0), session.turn("One", max_tokens=9, temperature=0.0)
            )
            assert [turn.turn for turn in turns] == [2, 3]
            assert await session.interrupt() is False
            assert (await (await client.import_session(await session.export(), "twin")).close()).deferred is False
            assert (await session.rewind(length=0)).tokens == 0
            assert len(await client.sessions()) == 2
            assert (await client.pools())["identity"] is True
            await other.close()
            with pytest.raises(ApiError):
                await client.session(other.id)
            with pytest.raises(ApiError, match="top_p"):
                await session.turn("Hello", top_p=7)
            async with session.stream("Long", max_tokens=1500) as stream:
                async for _ in stream:
                    break

    asyncio.run(converse())
