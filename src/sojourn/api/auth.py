"""Who asks: API keys from a file of hashes, with a role and a tenant each. Owns no session; a tenant is a cache namespace.

# sha256 of the key, role, tenant
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 user acme
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from fastapi import Request

from sojourn.api.errors import AuthenticationError, PermissionDeniedError
from sojourn.core.errors import ClientError

_LINE = re.compile(r"([0-9a-f]{64})\s+(\w+)\s+([A-Za-z0-9._-]{1,64})\Z")


class Role(IntEnum):
    """Each may what the ones below it may."""

    METRICS = 1
    USER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    role: Role
    tenant: str

    @property
    def reach(self) -> str | None:
        """The namespace of what it may see in lists and abort; None: every one."""
        return None if self.role is Role.ADMIN else self.tenant

    def namespace(self, tenant: str | None) -> str:
        """Whose session an id names: its own tenant's, or that of the one it names. Only an administrator may name others."""
        if tenant is None or tenant == self.tenant:
            return self.tenant
        if self.role < Role.ADMIN:
            raise PermissionDeniedError("sessions of another tenant need the role admin", code="insufficient_role")
        return tenant


LOCAL = Principal(Role.ADMIN, "")  # whoever asks a server without keys, which listens to this machine only


class Keys:
    """The known keys. None at all: everybody is LOCAL."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)

    @property
    def are_required(self) -> bool:
        return bool(self._principals)

    def identify(self, authorization: str | None) -> Principal:
        """Raises AuthenticationError for a missing or unknown key."""
        if not self._principals:
            return LOCAL
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationError("an API key is needed: Authorization: Bearer <key>", code="missing_api_key")
        principal = self._principals.get(hashlib.sha256(key.strip().encode()).hexdigest())
        if principal is None:
            raise AuthenticationError("this API key is not known", code="invalid_api_key")
        return principal


def parse_keys(text: str) -> Keys:
    """Raises ClientError naming the line that is wrong."""
    principals: dict[str, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.match(entry)
        if match is None or match[2].upper() not in Role.__members__:
            raise ClientError(
                f"line {number} of the key file is not '<sha256 of the key> <user|admin|metrics> <tenant>'",
                param="api_key_file",
            )
        if match[1] in principals:
            raise ClientError(f"line {number} of the key file repeats a key", param="api_key_file")
        principals[match[1]] = Principal(Role[match[2].upper()], match[3])
    if not principals:
        raise ClientError("the key file has no key", param="api_key_file")
    return Keys(principals)


def principal_of(request: Request, least: Role) -> Principal:
    """Who asks, if the key's role reaches that far."""
    keys = request.app.state.keys
    assert isinstance(keys, Keys)
    principal = keys.identify(request.headers.get("authorization"))
    if principal.role < least:
        raise PermissionDeniedError(f"this needs the role {least.name.lower()}", code="insufficient_role")
    return principal
