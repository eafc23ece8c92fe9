"""The parties that may own pages: their numbers and their names. Knows no pages.

Numbers are never reused, so a stale number can only name a closed account. All pools share one chart of accounts.
"""

from collections import OrderedDict

from sojourn.core.errors import law
from sojourn.core.ids import AccountId

FREE = AccountId(0)
RESERVED = AccountId(1)
FENCED = AccountId(2)
_FIRST_OPEN = 3
_CLOSED_REMEMBERED = 4096  # names kept for reports after an account has closed


class Accounts:
    """The chart of accounts: FREE, RESERVED and FENCED are always there; the rest open and close."""

    def __init__(self) -> None:
        self._labels: dict[AccountId, str] = {FREE: "free", RESERVED: "reserved", FENCED: "fenced"}
        self._closed: OrderedDict[AccountId, str] = OrderedDict()
        self._next = _FIRST_OPEN

    def open(self, label: str) -> AccountId:
        account = AccountId(self._next)
        self._next += 1
        self._labels[account] = label
        return account

    def close(self, account: AccountId) -> None:
        law(account >= _FIRST_OPEN and account in self._labels, "account %d is not open", account)
        self._closed[account] = self._labels.pop(account)
        if len(self._closed) > _CLOSED_REMEMBERED:
            self._closed.popitem(last=False)

    def is_open(self, account: AccountId) -> bool:
        return account in self._labels

    def name(self, account: AccountId) -> str:
        """For people: `label #number`, also of accounts closed not long ago."""
        if account in self._labels:
            return f"{self._labels[account]} #{account}"
        return f"closed {self._closed.get(account, '?')} #{account}"
