"""The front's settings towards clients that keep connections."""

import httpx

from sojourn.app.front_process import CONNECTION_IDLE_S


def test_an_idle_connection_is_closed_by_the_client_and_not_under_its_next_request() -> None:
    expiry = httpx.Limits().keepalive_expiry
    assert expiry is not None
    assert expiry < 60 < CONNECTION_IDLE_S, "clients and proxies give up first"
