"""Callers who know what they were told, for servers that are killed. A kill may come at any moment."""

import threading
from collections.abc import Sequence

import httpx

from tests.api.test_sessions import GREEDY, Json, events_of, ids, turn
from tests.support.server import GUARD_S, Server


def asked(number: int) -> Json:
    """What turn `number` asks for: the same of every caller, so all sessions say the same."""
    return {**GREEDY, "token_ids": ids(3, number), "max_tokens": 4 + number % 5, "turn": number}


class Callers:
    """Each holds a session of its own. `told` has the answers that arrived, by session."""

    def __init__(self, names: Sequence[str]) -> None:
        self.told: dict[str, list[list[int]]] = {name: [] for name in names}
        self.acknowledged = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()

    def open(self, server: Server) -> None:
        for name in self.told:
            assert server.http.post("/v1/sessions", json={"session_id": name}).status_code == 200

    def start(self, server: Server) -> None:
        """All of them talk, until somebody dies."""
        self._is_over.clear()
        self._threads = [threading.Thread(target=self._talk, args=(server.url, name)) for name in self.told]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Until that many more answers have arrived."""
        for _ in range(count):
            assert self.acknowledged.acquire(timeout=GUARD_S)

    def join(self) -> None:
        """Somebody has died. Who has not met that, since a new front took over its connection, stops after its turn."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(GUARD_S)
            assert not thread.is_alive()

    def check(self, server: Server) -> None:
        """Every turn that was told is there as it was told; at most one more, whose answer was lost, is too."""
        for name, told in self.told.items():
            kept = server.http.get(f"/v1/sessions/{name}").json()["turns"]
            assert kept in (len(told), len(told) + 1), (name, kept, len(told))
            for number, token_ids in list(enumerate(told))[-2:]:
                again = turn(server, name, **asked(number))
                assert (again["replayed"], again["token_ids"]) == (True, token_ids)
            if kept > len(told):
                told.append(turn(server, name, **asked(len(told)))["token_ids"])
        shortest = min(len(told) for told in self.told.values())
        heads = [told[:shortest] for told in self.told.values()]
        assert all(head == heads[0] for head in heads), "the same questions had different answers"

    def num_tokens(self, name: str) -> int:
        return sum(3 + len(token_ids) for token_ids in self.told[name])

    def _talk(self, url: str, name: str) -> None:
        told = self.told[name]
        with httpx.Client(base_url=url, timeout=GUARD_S) as http:
            while not self._is_over.is_set():
                body = {**asked(len(told)), "stream": len(told) % 2 == 1}
                try:
                    answer = _answer(http, f"/v1/sessions/{name}/turns", body)
                except httpx.TransportError:
                    return
                if answer is None:
                    return
                told.append(answer)
                self.acknowledged.release()


def _answer(http: httpx.Client, path: str, body: Json) -> list[int] | None:
    """The answer if it is whole; None for a refusal."""
    if not body["stream"]:
        response = http.post(path, json=body)
        assert response.status_code in (200, 503), response.text
        return list(response.json()["token_ids"]) if response.status_code == 200 else None
    with http.stream("POST", path, json=body) as response:
        last = [*events_of(response)][-1:]
    return list(last[0]["token_ids"]) if last and last[0]["type"] == "turn.ended" else None
