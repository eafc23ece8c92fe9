"""A session as a file: it comes back as it went, and what was cut, changed, foreign or made up is refused."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_backend import VOCAB_SIZE
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.core.errors import ClientError
from sojourn.sessions.archive import ArchivedModel, join, pack, split, unpack
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import StoredSession

MODEL = ArchivedModel("tiny", "f" * 64)


@st.composite
def histories(draw: st.DrawFn) -> StoredSession:
    turns: list[TurnRecord] = []
    number, place = -1, 0
    for step, asked, said, note in draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 9), st.binary(max_size=20)), max_size=6)
    ):
        number += step
        turns.append(TurnRecord(number, place, place + asked, place + asked + said, note, "stop"))
        place += asked + said
    tokens = np.array(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=place, max_size=place)), np.int32)
    timeout_s = draw(st.none() | st.floats(0.1, 1e6))
    name, salt = draw(st.text(max_size=8)), draw(st.text(max_size=8))
    epoch, priority = draw(st.integers(0, 5)), draw(st.integers(-9, 9))
    return StoredSession(
        name, salt, bool(turns), timeout_s, 0.0, epoch, number + 1, tuple(turns), tokens, priority=priority
    )


def told(stored: StoredSession) -> tuple[object, ...]:
    return (stored.session_id, stored.namespace, stored.has_begun, stored.idle_timeout_s, stored.epoch,
            stored.next_turn, stored.priority, stored.turns, stored.tokens.tolist())  # fmt: skip


@given(stored=histories())
def test_a_session_comes_back_as_it_went(stored: StoredSession) -> None:
    assert told(unpack(pack(stored, MODEL), MODEL)) == told(stored)


@settings(max_examples=100)
@given(stored=histories(), where=st.floats(0, 1), bit=st.integers(0, 7), keep=st.floats(0, 1))
def test_a_file_that_was_cut_or_changed_is_refused(stored: StoredSession, where: float, bit: int, keep: float) -> None:
    data = pack(stored, MODEL)
    at = int(where * (len(data) - 1))
    changed = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
    for wrong in (changed, data[: int(keep * (len(data) - 1))], data + b"\0"):
        with pytest.raises(ClientError) as caught:
            unpack(wrong, MODEL)
        assert caught.value.param == "file"


@settings(max_examples=100)
@given(data=st.binary(max_size=200), begins_right=st.booleans())
def test_anything_at_all_is_refused(data: bytes, begins_right: bool) -> None:
    start = struct.pack("<8sHHI", b"SOJOURN\x1a", 1, len(data) % 3, 0) if begins_right else b""
    for wrong in (start + data, join({b"HEAD": data, b"TURN": data, b"TOKN": data})):
        with pytest.raises(ClientError):
            unpack(wrong, MODEL)


def test_another_models_file_is_refused_by_its_name() -> None:
    world = SessionWorld(WorldConfig())
    data = pack(world.service.copy(world.service.open()), MODEL)
    with pytest.raises(ClientError, match="another model \\(tiny\\); this server has other") as caught:
        unpack(data, ArchivedModel("other", "e" * 64))
    assert caught.value.code == "foreign_model"


def test_there_is_room_for_more_and_what_must_be_understood_is() -> None:
    world = SessionWorld(WorldConfig())
    data = pack(world.service.copy(world.service.open("a")), MODEL)
    sections = split(data)
    assert unpack(join({**sections, b"kvpg": b"pages"}), MODEL).session_id == "a"
    with pytest.raises(ClientError, match="does not know"):
        unpack(join({**sections, b"KVPG": b"pages"}), MODEL)
    with pytest.raises(ClientError, match="no section TURN"):
        unpack(join({tag: body for tag, body in sections.items() if tag != b"TURN"}), MODEL)
    newer = bytearray(data)
    newer[8] = 2
    with pytest.raises(ClientError, match="version 2"):
        unpack(bytes(newer), MODEL)


def test_a_file_that_was_made_up_with_the_right_sum_is_checked_where_it_is_taken_in() -> None:
    world = SessionWorld(WorldConfig(context=64))
    session = world.service.open("a")
    world.run_turn(session, [1, 2, 3], 5)
    good = replace(world.service.copy(session), session_id="b")
    (turn,) = good.turns
    wrong = [
        replace(good, tokens=good.tokens[:-1]),
        replace(good, tokens=good.tokens + VOCAB_SIZE),
        replace(good, turns=()),
        replace(good, turns=(replace(turn, output_start=9),)),
        replace(good, next_turn=0),
        replace(good, priority=101),
        replace(good, turns=(replace(turn, end=65),), tokens=np.zeros(65, np.int32)),
    ]
    for stored in wrong:
        with pytest.raises(ClientError) as caught:
            world.service.take_in(unpack(pack(stored, MODEL), MODEL))
        assert caught.value.param in ("file", "priority")
        assert world.service.session_ids() == ("a",)
    world.service.take_in(unpack(pack(good, MODEL), MODEL))
    world.run_turn("b", [4], 5)
    world.close_all()
