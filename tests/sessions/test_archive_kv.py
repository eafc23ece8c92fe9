"""The section of KV: what is written is read, and every byte that is not what was written is refused."""

import msgspec
import pytest

from sojourn.core.errors import ClientError
from sojourn.sessions import archive, archive_kv
from sojourn.sessions.archive_kv import KvHeader, frame, frames, length_of, opening, payload_of, read_header

HEADERS = [
    KvHeader("ab" * 24, [100], 3, 3, 0),
    KvHeader("ab" * 24, [100, 40], 5, 3, 7),
    KvHeader("ab" * 24, [0, 40], 2, 0, 1),
    KvHeader("ab" * 24, [100, 40], 0, 0, 0),
]


@pytest.mark.parametrize("header", HEADERS)
def test_frames_lie_end_to_end_and_fill_the_section(header: KvHeader) -> None:
    data = bytearray(opening(header))
    for number, one in enumerate(frames(header)):
        assert one.at == len(data)
        data += frame(bytes([number]) * one.size, one.size)
    assert len(data) == length_of(header)
    assert read_header(bytes(data[: archive_kv.HEADER_BYTES_MAX]), len(data), header.pages) == header
    assert list(frames(header, from_end=True)) == list(frames(header))[::-1]
    for number, one in enumerate(frames(header)):
        end = one.at + archive_kv.FRAME_BYTES + one.size
        assert payload_of(bytes(data[one.at : end])) == bytes([number]) * one.size
    for length in range(len(opening(header))):
        with pytest.raises(ClientError):
            read_header(bytes(data[:length]), len(data), 99)
    with pytest.raises(ClientError, match="length"):
        read_header(bytes(data), len(data) + 1, 99)


def test_full_pages_come_first_then_windows_then_the_tail() -> None:
    places = [(one.pool, one.index) for one in frames(HEADERS[1])]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (0, 5), (1, 5)]


def test_a_page_that_was_gone_is_told_from_one_that_was_changed() -> None:
    assert payload_of(frame(None, 9)) is None
    good = frame(b"123456789", 9)
    assert payload_of(good) == b"123456789"
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        with pytest.raises(ClientError) as caught:
            if payload_of(bytes(bad)) is None:
                raise ClientError("a page may be said to be gone", code="invalid_file")
        assert caught.value.code == "invalid_file"


@pytest.mark.parametrize(
    "changed",
    [
        {"kv_format": "xyz"},
        {"kv_format": ""},
        {"kv_format": "ab" * 65},
        {"page_bytes": []},
        {"page_bytes": [1, 2, 3]},
        {"page_bytes": [-1]},
        {"pages": -1},
        {"pages": 1 << 50},
        {"windows_from": 4},
        {"tail_tokens": -1},
        {"tail_tokens": "a"},
        {"more": 1},
    ],
)
def test_a_header_that_cannot_be_is_refused(changed: dict[str, object]) -> None:
    told = {**msgspec.to_builtins(HEADERS[0]), **changed}
    data = msgspec.json.encode(told)
    start = len(data).to_bytes(4, "little") + data
    with pytest.raises(ClientError) as caught:
        read_header(start, length_of(HEADERS[0]) - len(opening(HEADERS[0])) + len(start), 99)
    assert (caught.value.param, caught.value.code) == ("file", "invalid_file")


def test_there_cannot_be_more_pages_than_tokens() -> None:
    header = KvHeader("ab" * 24, [0], 1_000_000, 0, 0)
    with pytest.raises(ClientError, match="more pages than the history has tokens"):
        read_header(opening(header), length_of(header), 999_999)


def test_a_reader_of_the_history_passes_over_it() -> None:
    header = HEADERS[1]
    body = opening(header) + b"".join(frame(None, one.size) for one in frames(header))
    whole = archive.join({b"HEAD": b"h", b"TURN": b"t", b"TOKN": b"k", archive_kv.TAG: body})
    assert archive.split(whole)[b"TOKN"] == b"k"
    history = {b"HEAD": b"h", b"TURN": b"t", b"TOKN": b"k"}
    start = archive.opening(history, (archive_kv.TAG, len(body)))
    assert whole.startswith(start)
    assert whole[len(start) : -archive.SUM_BYTES] == body
    assert archive.places_of(start, len(whole), is_whole=True)[archive_kv.TAG] == (len(start), len(body))
