"""The key file: what it says, and which line is wrong."""

import hashlib

import pytest

from sojourn.api.auth import LOCAL, Keys, Principal, Role, parse_keys
from sojourn.api.errors import AuthenticationError, PermissionDeniedError
from sojourn.core.errors import ClientError

HASH = hashlib.sha256(b"key").hexdigest()


def test_a_key_has_its_role_and_tenant() -> None:
    keys = parse_keys(f"# all\n\n{HASH}  user acme # comment\n")
    assert keys.identify("Bearer key") == Principal(Role.USER, "acme")
    assert keys.identify("bearer  key ") == Principal(Role.USER, "acme")
    for wrong in (None, "", "Bearer", "Bearer other", f"Bearer {HASH}", "Basic key"):
        with pytest.raises(AuthenticationError):
            keys.identify(wrong)


def test_without_keys_everybody_is_local() -> None:
    assert Keys({}).identify(None) == LOCAL
    assert LOCAL.reach is None
    assert Principal(Role.USER, "acme").reach == "acme"


def test_only_an_administrator_names_another_tenant() -> None:
    user, boss = Principal(Role.USER, "acme"), Principal(Role.ADMIN, "all")
    assert [user.namespace(None), user.namespace("acme"), boss.namespace(None)] == ["acme", "acme", "all"]
    assert boss.namespace("acme") == "acme"
    with pytest.raises(PermissionDeniedError):
        user.namespace("beta")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key user acme", "line 1"),
        (f"\n{HASH} king acme", "line 2"),
        (f"{HASH} user", "line 1"),
        (f"{HASH} user acme\n{HASH} admin acme", "line 2 .* repeats"),
        ("# nothing", "no key"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(text: str, message: str) -> None:
    with pytest.raises(ClientError, match=message) as refusal:
        parse_keys(text)
    assert HASH not in str(refusal.value)
