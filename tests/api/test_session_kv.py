"""A session's file with its KV: another server goes on where the first one was, or computes, and says why."""

import hashlib
import socket
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import quiet
from tests.api.test_durable_sessions import kept_in, taken_in
from tests.api.test_sessions import Json, ids, open_session, turn
from tests.support.server import Server, eventually, serving, write_tiny_gguf

from sojourn.api.settings import FrontSettings
from sojourn.app.config import EngineOptions
from sojourn.app.serve import with_files
from sojourn.client.models import ApiError, ImportedKv
from sojourn.client.sync import Client
from sojourn.core.errors import ClientError
from sojourn.disk.files import TEMPORARY
from sojourn.sessions import archive, archive_kv
from sojourn.sessions.archive_kv import FRAME_BYTES, KvHeader, frames

pytestmark = pytest.mark.http_scenario
SIZE = ("--context", "2048", "--pool-tokens", "4096", "--durability", "none")


def with_kv(folder: Path) -> tuple[str, ...]:
    return ("--disk-cache", str(folder), *SIZE)


def exported(server: Server, session: str) -> bytes:
    response = server.http.get(f"/v1/sessions/{session}/export", params={"kv": True})
    assert response.status_code == 200, response.text
    assert int(response.headers["content-length"]) == len(response.content)
    return response.content


def talked(server: Server) -> str:
    session = open_session(server)
    turn(server, session, token_ids=ids(150), max_tokens=20)
    turn(server, session, token_ids=ids(40, salt=2), max_tokens=9)
    return session


def saved_of(server: Server, session: str) -> int:
    return int(server.http.get(f"/v1/sessions/{session}").json()["tokens"])


def page_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def header_of(data: bytes) -> KvHeader:
    sections = archive.split(data)
    section, num_tokens = sections[archive_kv.TAG], len(sections[b"TOKN"]) // 4
    return archive_kv.read_header(section[: archive_kv.HEADER_BYTES_MAX], len(section), num_tokens)


@pytest.mark.parametrize(("architecture", "page_size"), [("llama", 16), ("gemma3", 4)])  # a window of 8 tokens
def test_a_session_goes_on_at_another_server_with_its_kv(
    models: Path, tmp_path: Path, architecture: str, page_size: int
) -> None:
    model = write_tiny_gguf(models, architecture=architecture)
    one, two = tmp_path / "one", tmp_path / "two"
    with (
        serving(models, *with_kv(one), "--page-size", str(page_size), model=model) as server,
        serving(models, *with_kv(two), "--import-kv", "--page-size", str(page_size), model=model) as other,
    ):
        session = talked(server)
        data, saved = exported(server, session), saved_of(server, session)
        assert data == exported(server, session), "what is in files already is read again"
        header = header_of(data)
        assert len(header.page_bytes) == (2 if architecture == "gemma3" else 1)
        assert (0 < header.windows_from < header.pages) == (architecture == "gemma3"), "of the window what is live"
        with Client(other.url) as client:
            twin = client.import_session(data)
            assert twin.imported_kv is not None
            assert (twin.imported_kv.tokens >= saved - 1, twin.imported_kv.left_out) == (True, None)
            eventually(lambda: len(page_files(two)) > saved // 16, "what came is in no files")
            resumed = turn(other, twin.id, token_ids=ids(30, salt=5), max_tokens=40)
        undisturbed = turn(server, session, token_ids=ids(30, salt=5), max_tokens=40)
        assert resumed["token_ids"] == undisturbed["token_ids"]
        assert resumed["cache"]["cached_tokens"] >= saved - 1
        assert resumed["cache"]["source"] == "disk"
        assert undisturbed["cache"]["source"] == "session", "it was copied, not given up"
        quiet(other)
        quiet(server)


def test_what_only_the_files_have_leaves_with_it(models: Path, tmp_path: Path) -> None:
    options = ("--disk-cache", str(tmp_path / "kv"), *kept_in(tmp_path))
    with serving(models, *options) as server:
        session = talked(server)
        saved = saved_of(server, session)
        assert server.stop() == 0
    with serving(models, *options) as server:
        header = header_of(exported(server, session))
        assert header.pages * 16 + header.tail_tokens >= saved - 1
        assert server.http.get(f"/v1/sessions/{session}").json()["pages"] == {"full": {"own": 0, "leased": 0}}
        quiet(server)


def test_without_leave_or_a_disk_cache_the_history_comes_alone(models: Path, tmp_path: Path) -> None:
    with serving(models, *with_kv(tmp_path / "one")) as server, serving(models, *SIZE) as plain:
        session = talked(server)
        data = exported(server, session)
        undisturbed = turn(server, session, token_ids=ids(3), max_tokens=9)
        for other in (server, plain):
            answer = taken_in(other, data, "twin")
            assert answer.status_code == 200, answer.text
            kv: Json = answer.json()["kv"]
            assert (kv["tokens"], "--import-kv" in kv["left_out"]) == (0, True)
            assert turn(other, "twin", token_ids=ids(3), max_tokens=9)["token_ids"] == undisturbed["token_ids"]
        alone = plain.http.get("/v1/sessions/twin/export").content
        assert taken_in(plain, alone, "again").json()["kv"] is None
        with Client(plain.url) as client, pytest.raises(ApiError) as refused:
            client.session("twin").export(kv=True)
        assert (refused.value.status, refused.value.param, refused.value.code) == (400, "kv", "no_disk_cache")
        assert "--disk-cache" in str(refused.value)
        quiet(plain)


def test_what_the_command_line_says_of_files_reaches_the_front() -> None:
    settings = FrontSettings("address")
    told = with_files(settings, EngineOptions(disk_cache="kv"), 7, import_kv=True)
    assert (told.disk_cache, told.import_bytes_max, told.import_kv) == ("kv", 7 << 20, True)
    assert with_files(settings, EngineOptions(), 1024, import_kv=False) == settings
    for options, mib, param in ((EngineOptions(), 7, "import_kv"), (EngineOptions(disk_cache="kv"), 0, "import_mib")):
        with pytest.raises(ClientError) as refused:
            with_files(settings, options, mib, import_kv=True)
        assert refused.value.param == param


def test_a_file_that_was_cut_or_changed_anywhere_leaves_nothing(models: Path, tmp_path: Path) -> None:
    kv, tmp = tmp_path / "two", tmp_path / "tmp"
    tmp.mkdir()
    options = (*with_kv(kv), "--import-kv", "--import-mib", "1")
    with (
        serving(models, *with_kv(tmp_path / "one")) as server,
        serving(models, *options, environment={"TMPDIR": str(tmp)}) as other,
    ):
        data = exported(server, talked(server))
        run_folders = sorted(path.name for path in tmp.iterdir())
        step = len(data) // 40
        wrong = [
            *(data[:length] for length in range(0, len(data), step)),
            *(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), step)),
            data[:-1],
            data + b"\0",
            *forged(data),
        ]
        for one in wrong:
            answer = taken_in(other, one, "twin")
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["code"] in ("invalid_file", "unknown_version")
        large = taken_in(other, data + bytes(2 << 20), "twin")
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        assert other.http.get("/v1/sessions").json()["data"] == []
        assert page_files(kv) == []
        assert sorted(path.name for path in tmp.iterdir()) == run_folders
        assert not list(kv.glob(f"{TEMPORARY}*"))
        quiet(other)


def forged(data: bytes) -> list[bytes]:
    """Sums of the whole file that are right, over what is not: a page, the header, the order of sections."""
    sections = archive.split(data)
    section = sections[archive_kv.TAG]
    page = list(frames(header_of(data)))[-1].at + FRAME_BYTES
    changed = section[:page] + bytes([section[page] ^ 1]) + section[page + 1 :]
    first = {archive_kv.TAG: section, **{tag: body for tag, body in sections.items() if tag != archive_kv.TAG}}
    return [
        archive.join({**sections, archive_kv.TAG: changed}),
        archive.join({**sections, archive_kv.TAG: section[:-1]}),
        archive.join({**sections, archive_kv.TAG: section.replace(b'"pages":', b'"sages":')}),
        archive.join(first),
    ]


def test_kv_of_another_kind_or_of_more_than_the_history_is_left_out(models: Path, tmp_path: Path) -> None:
    with serving(models, *with_kv(tmp_path / "kv"), "--import-kv") as server:
        session = talked(server)
        sections = archive.split(exported(server, session))
        before = page_files(tmp_path / "kv")
        header = header_of(archive.join(sections))
        body = sections[archive_kv.TAG][len(archive_kv.opening(header)) :]
        foreign = KvHeader("00" * 24, header.page_bytes, header.pages, header.windows_from, header.tail_tokens)
        longer = KvHeader(header.kv_format, header.page_bytes, header.pages, header.pages, 16)
        for name, told, why in (("foreign", foreign, "another"), ("longer", longer, "history")):
            made = archive.join({**sections, archive_kv.TAG: archive_kv.opening(told) + body})
            answer = taken_in(server, made, name)
            assert answer.status_code == 200, answer.text
            kv = answer.json()["kv"]
            assert kv["tokens"] == 0
            assert why in kv["left_out"]
        assert page_files(tmp_path / "kv") == before
        quiet(server)


def test_a_page_that_is_gone_leaves_a_gap_and_a_whole_file(models: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    with serving(models, *with_kv(kv), "--import-kv") as server:
        session = talked(server)
        whole = exported(server, session)
        header = header_of(whole)
        for path in kv.glob("*.0"):
            path.write_bytes(hashlib.sha256(path.read_bytes()).digest().ljust(path.stat().st_size, b"\0"))
        data = exported(server, session)
        assert len(data) == len(whole)
        with Client(server.url) as client:
            assert client.import_session(data).imported_kv == ImportedKv(0, "the file does not have the rest")
        assert header.pages > 0
        quiet(server)


def test_without_the_folder_the_history_leaves_alone(models: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    with serving(models, *with_kv(kv)) as server:
        session = talked(server)
        kv.rename(tmp_path / "elsewhere")
        data = exported(server, session)
    assert header_of(data).pages == 0


def test_who_leaves_in_the_middle_of_a_file_has_made_no_mistake_of_the_server_s(models: Path) -> None:
    with serving(models, *SIZE) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port)) as client:
            client.sendall(b"POST /v1/sessions/import HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\nhalf of it")
        quiet(server)
        assert 'status="500"' not in server.http.get("/metrics").text
        assert server.stop() == 0
        assert "Traceback" not in server.stderr()
