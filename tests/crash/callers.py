"""Callers who know what they were told, and what they were not, for servers that are killed. A kill may come at any moment.

Before a request is sent, its caller notes what may be so if the answer never comes; when it comes, what is so. After a kill
`settle` looks which of it is so: all that was told, and of what was not, the whole or nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import httpx
import numpy as np

from sojourn.sessions.archive import split
from tests.api.test_sessions import Json, events_of
from tests.crash.known import Known, is_append, question
from tests.support.server import GUARD_S, Server

ABSENT = -1
TURNS_MAX = 40  # of one session; then its caller opens another one
ACTS = {"turn": 12, "left, asked again": 2, "rewind": 1, "fork": 1, "import": 1}


class GoneError(Exception):
    """The server, or a part of it: a refusal that says so, or a connection that broke."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first turn after a start."""

    saved: int
    cached: int
    source: str
    miss: str | None
    was_computed: bool


class Caller:
    """Talks in one session at a time. `possible`: the turns that each of its sessions may have, or be absent."""

    def __init__(self, number: int, seed: int, known: Known, done: "Counter[str]") -> None:
        self._number = number
        self._rng = Random(seed * 1000 + number)
        self._known = known
        self._done = done
        self._count = 0
        self.name = ""
        self.turns = 0
        self.is_computed = False  # its last turn, by the server that was killed last or by this one
        self.possible: dict[str, set[int]] = {}

    def act(self, http: httpx.Client) -> None:
        """One thing to its end. GoneError, or what httpx raises: the end was not told."""
        if not self.name or self.turns >= TURNS_MAX:
            self._open(http)
        (kind,) = self._rng.choices(list(ACTS), list(ACTS.values()))
        if kind == "rewind":
            self._rewind(http, self._rng.randint(0, self.turns))
        elif kind == "fork":
            turns = self._rng.randint(max(0, self.turns - 3), self.turns)
            self._move(turns, lambda name: self._post(http, "/fork", {"session_id": name, "turns": turns}))
            self._close_others(http)
        elif kind == "import":
            data = self._exported(http)
            self._move(self.turns, lambda name: self._import(http, name, data))
            self._close_others(http)
        else:
            if kind != "turn":
                self._leave(http)
            self._turn(http)
        self._done[kind] += 1

    # -- requests, noted before and after

    def _path(self, what: str) -> str:
        return f"/v1/sessions/{self.name}{what}"

    def _post(self, http: httpx.Client, what: str, body: Json) -> Json:
        return answer_of(http.post(self._path(what), json=body))

    def _import(self, http: httpx.Client, name: str, data: bytes) -> Json:
        return answer_of(http.post("/v1/sessions/import", params={"session_id": name}, content=data))

    def _open(self, http: httpx.Client) -> None:
        self._move(0, lambda name: answer_of(http.post("/v1/sessions", json={"session_id": name})))
        self._close_others(http)

    def _move(self, turns: int, ask: Callable[[str], Json]) -> None:
        """To a new session of so many turns."""
        self._count += 1
        self.is_computed = False
        name = f"c{self._number}-{self._count}"
        self.possible[name] = {ABSENT, turns}
        shown = ask(name)
        assert (shown["id"], shown["turns"]) == (name, turns), shown
        self.possible[name] = {turns}
        self.name, self.turns = name, turns

    def _close_others(self, http: httpx.Client) -> None:
        for name in [name for name in self.possible if name != self.name]:
            self.possible[name].add(ABSENT)
            assert answer_of(http.delete(f"/v1/sessions/{name}"))["deleted"] is True
            del self.possible[name]

    def _rewind(self, http: httpx.Client, turns: int) -> None:
        self.possible[self.name].add(turns)
        self.is_computed = False
        assert self._post(http, "/rewind", {"turns": turns})["turns"] == turns
        self._stand(turns)

    def _stand(self, turns: int) -> None:
        self.turns = turns
        self.possible[self.name] = {turns}

    def _turn(self, http: httpx.Client) -> Json:
        """The next one, which may have been sent before."""
        number = self.turns
        self.possible[self.name].add(number + 1)
        answer = self._ask(http, number)
        self._known.hear(number, answer["token_ids"])
        assert answer["turn"] == number, answer
        self._stand(number + 1)
        self.is_computed = True
        return answer

    def _ask(self, http: httpx.Client, number: int) -> Json:
        body = question(number)
        if is_append(number):
            return self._post(http, "/append", body)
        if self._rng.random() < 0.5:
            return self._post(http, "/turns", body)
        with http.stream("POST", self._path("/turns"), json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                return answer_of(response)
            last = [*events_of(response)][-1:]
        if not last or last[0]["type"] != "turn.ended":
            raise GoneError(last)
        return last[0]

    def _leave(self, http: httpx.Client) -> None:
        """The next turn is begun, and left."""
        if is_append(self.turns):
            return
        self.possible[self.name].add(self.turns + 1)
        with http.stream("POST", self._path("/turns"), json={**question(self.turns), "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                answer_of(response)
            next(events_of(response), None)

    def _exported(self, http: httpx.Client) -> bytes:
        """Its file, whose tokens are what they must be."""
        response = http.get(self._path("/export"))
        if response.status_code != 200:
            answer_of(response)
        tokens = np.frombuffer(split(response.content)[b"TOKN"], "<i4").tolist()
        assert tokens == self._known.history(self.turns), f"the history of {self.name} is another one"
        return response.content

    # -- after a kill

    def settle(self, http: httpx.Client) -> None:
        """Of what may be so, one thing is; the session it talks in is found again, token for token, and no other one is."""
        found = {name: self._turns_of(http, name) for name in self.possible}
        for name, turns in found.items():
            assert turns in self.possible[name], f"{name} has {turns} turns, and should have {self.possible[name]}"
        there = [name for name, turns in found.items() if turns != ABSENT]
        self.possible = {name: {found[name]} for name in there}
        if not there:
            self.name, self.turns = "", 0
            return
        if self.name not in there:
            self.name = there[0]
        self.turns = found[self.name]
        if self.turns:
            self._hear_again(http, self.turns - 1)
        self._exported(http)
        self._close_others(http)

    def _turns_of(self, http: httpx.Client, name: str) -> int:
        """A turn that was cut off may still be on its way out."""
        while True:
            response = http.get(f"/v1/sessions/{name}")
            if response.status_code == 404:
                return ABSENT
            shown = answer_of(response)
            if shown["state"] == "idle":
                return int(shown["turns"])

    def _hear_again(self, http: httpx.Client, number: int) -> None:
        """A turn that is kept is answered, and not run, whether or not it was told before."""
        answer = self._ask(http, number)
        assert answer["replayed"] is True, answer
        self._known.hear(number, answer["token_ids"])

    def holds_kv(self, http: httpx.Client) -> bool:
        """Its session has pages of its own or of the tree, which the tree may not give up."""
        pages = answer_of(http.get(f"/v1/sessions/{self.name}"))["pages"].values()
        return any(pool["own"] + pool["leased"] > 0 for pool in pages)

    def resume(self, http: httpx.Client) -> Resumed | None:
        """The next turn, with what was still there of those before it."""
        if not self.turns or is_append(self.turns):
            return None
        saved, was_computed = len(self._known.history(self.turns)), self.is_computed
        answer = self._turn(http)
        cache = answer["cache"]
        return Resumed(saved, cache["cached_tokens"], cache["source"], cache["miss_reason"], was_computed)


def answer_of(response: httpx.Response) -> Json:
    if response.status_code == 503:
        raise GoneError(response.text)
    assert response.status_code == 200, (response.request.url, response.status_code, response.text)
    answer: Json = response.json()
    return answer


class Callers:
    """All of them, each on a thread of its own while they talk."""

    def __init__(self, count: int, seed: int) -> None:
        self.known = Known()
        self.done: Counter[str] = Counter()
        self.all = [Caller(number, seed, self.known, self.done) for number in range(count)]
        self._acknowledged = threading.Semaphore(0)
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._talking: Sequence[Future[None]] = ()

    def close(self) -> None:
        self._is_over.set()
        self._pool.shutdown()

    def start(self, url: str) -> None:
        """They talk until somebody dies."""
        self._is_over.clear()
        self._talking = [self._pool.submit(self._talk, caller, url) for caller in self.all]

    def wait_for(self, count: int) -> None:
        """Until that many more answers have arrived."""
        for _ in range(count):
            assert self._acknowledged.acquire(timeout=GUARD_S), [talk for talk in self._talking if talk.done()]

    def join(self) -> None:
        """Somebody has died. Who has not met that, since a new front took over its connection, stops after its answer."""
        self._is_over.set()
        for talk in self._talking:
            talk.result(GUARD_S)

    def lose_kv(self) -> None:
        """The engine was killed; what it had not written back is gone."""
        for caller in self.all:
            caller.is_computed = False

    def lose_unwritten_kv(self, server: Server) -> None:
        """The engine is about to be killed, and has nothing left to write: what sessions hold is in files."""
        for caller in self.all:
            caller.is_computed = caller.is_computed and caller.holds_kv(server.http)

    def settle(self, server: Server) -> None:
        for caller in self.all:
            caller.settle(server.http)
        names = {one["id"] for one in server.http.get("/v1/sessions").json()["data"]}
        assert names == {caller.name for caller in self.all if caller.name}, "sessions that nobody knows"

    def resume(self, server: Server) -> list[Resumed]:
        return [resumed for caller in self.all if (resumed := caller.resume(server.http)) is not None]

    def _talk(self, caller: Caller, url: str) -> None:
        with httpx.Client(base_url=url, timeout=GUARD_S) as http:
            while not self._is_over.is_set():
                try:
                    caller.act(http)
                except (httpx.TransportError, GoneError):
                    return
                self._acknowledged.release()
