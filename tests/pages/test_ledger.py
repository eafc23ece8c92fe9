"""The ledger: every move names both sides, and a wrong one is caught as it is made."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sojourn.core.errors import CapacityError, CorruptionError
from sojourn.core.ids import AccountId, PageId, StepId
from sojourn.core.step import Pool
from sojourn.pages.accounts import FENCED, FREE, RESERVED, Accounts
from sojourn.pages.ledger import PageLedger, PageOwnerError
from tests.twins.ledger import TwinLedger


def make(num_pages: int = 9) -> tuple[PageLedger, AccountId, AccountId]:
    accounts = Accounts()
    ledger = PageLedger(Pool.FULL, num_pages, accounts)
    return ledger, accounts.open("alice"), accounts.open("bob")


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_null_page_is_nobodys_to_have() -> None:
    ledger, alice, _ = make(3)
    assert sorted(ledger.allocate(alice, 2).tolist()) == [1, 2]
    assert ledger.owner(PageId(0)) == RESERVED
    with pytest.raises(CapacityError):
        ledger.allocate(alice, 1)


def test_shortage_changes_nothing() -> None:
    ledger, alice, _ = make(4)
    before = ledger.statistics()
    with pytest.raises(CapacityError, match="4 pages wanted, 3 free"):
        ledger.allocate(alice, 4)
    assert ledger.statistics() == before


@pytest.mark.parametrize("count", [1, 3])
def test_a_move_from_the_wrong_owner_names_all_parties(count: int) -> None:
    ledger, alice, bob = make()
    mine = ledger.allocate(alice, count)
    with pytest.raises(
        PageOwnerError, match=rf"page {mine[0]}: bob #\d+ gives it to free #0, but alice #\d+ owns it"
    ) as hit:
        ledger.release(mine, bob)
    assert hit.value.page == mine[0]
    assert ledger.balance(alice) == count


def test_double_free_is_caught() -> None:
    ledger, alice, _ = make()
    mine = ledger.allocate(alice, 2)
    ledger.release(mine, alice)
    with pytest.raises(PageOwnerError, match="free #0 owns it"):
        ledger.release(mine, alice)


def test_a_page_twice_in_one_move_is_caught() -> None:
    ledger, alice, _ = make()
    (page,) = ledger.allocate(alice, 1).tolist()
    with pytest.raises(PageOwnerError, match="twice in one move"):
        ledger.release(pages(page, page), alice)


@pytest.mark.parametrize("wrong", [-1, 9, 100])
def test_a_page_that_does_not_exist_is_caught(wrong: int) -> None:
    ledger, alice, _ = make()
    mine = ledger.allocate(alice, 1)
    with pytest.raises(CorruptionError):
        ledger.release(np.append(mine, np.int32(wrong)), alice)
    with pytest.raises(CorruptionError):
        ledger.release(pages(wrong), alice)


def test_reserved_kinds_are_given_by_their_own_verbs() -> None:
    ledger, alice, _ = make()
    mine = ledger.allocate(alice, 1)
    for account in (FREE, FENCED, RESERVED):
        with pytest.raises(CorruptionError):
            ledger.transfer(mine, alice, account)
        with pytest.raises(CorruptionError):
            ledger.release(mine, account)
        with pytest.raises(CorruptionError):
            ledger.allocate(account, 1)


def test_a_released_page_waits_for_every_step_in_flight() -> None:
    ledger, alice, _ = make(4)
    mine = ledger.allocate(alice, 3)
    ledger.launch(StepId(1))
    ledger.launch(StepId(2))
    ledger.release(mine, alice)
    assert (ledger.num_free, ledger.num_fenced) == (0, 3)
    ledger.retire(StepId(1))
    assert (ledger.num_free, ledger.num_fenced) == (0, 3)
    ledger.launch(StepId(3))
    ledger.retire(StepId(2))
    assert (ledger.num_free, ledger.num_fenced) == (3, 0)


def test_steps_launch_and_retire_in_order() -> None:
    ledger, _, _ = make()
    ledger.launch(StepId(5))
    with pytest.raises(CorruptionError):
        ledger.launch(StepId(5))
    with pytest.raises(CorruptionError):
        ledger.retire(StepId(6))
    ledger.retire(StepId(5))
    with pytest.raises(CorruptionError):
        ledger.retire(StepId(5))


def test_an_account_closes_empty() -> None:
    ledger, alice, _ = make()
    mine = ledger.allocate(alice, 2)
    with pytest.raises(CorruptionError, match="alice #3 closes owning 2 pages"):
        ledger.close_account(alice)
    assert ledger.owner(PageId(int(mine[0]))) == alice


def test_the_journal_remembers_a_page() -> None:
    ledger, alice, bob = make()
    mine = ledger.allocate(alice, 2)
    ledger.transfer(mine, alice, bob)
    ledger.launch(StepId(7))
    ledger.release(mine, bob)
    assert [(m.source, m.target, m.step) for m in ledger.moves_of(PageId(int(mine[1])))] == [
        (FREE, alice, -1),
        (alice, bob, -1),
        (bob, FENCED, 7),
    ]


def test_the_journal_is_bounded() -> None:
    ledger, alice, _ = make(1 << 12)
    for _ in range(40):
        ledger.release(ledger.allocate(alice, 4000), alice)
    assert sum(len(move.pages) for move in ledger.moves_since(0)) <= (1 << 16)
    for _ in range(5000):
        ledger.release(ledger.allocate(alice, 1), alice)
    moves = ledger.moves_since(0)
    assert len(moves) == 1 << 13
    assert moves[-1].target == FREE, "the latest are kept"


class LedgerMachine(RuleBasedStateMachine):
    """The ledger and its twin, side by side."""

    @initialize(num_pages=st.integers(2, 20))
    def build(self, num_pages: int) -> None:
        accounts = Accounts()
        self.ledger = PageLedger(Pool.SWA, num_pages, accounts)
        self.twin = TwinLedger(num_pages)
        self.parties = [accounts.open(name) for name in "abc"]
        self.next_step = 1

    @rule(who=st.integers(0, 2), count=st.integers(0, 6))
    def allocate(self, who: int, count: int) -> None:
        account = self.parties[who]
        if count > len(self.twin.pages_of("free")):
            with pytest.raises(CapacityError):
                self.ledger.allocate(account, count)
        else:
            self.twin.give(set(self.ledger.allocate(account, count).tolist()), "free", account)

    @rule(who=st.integers(0, 2), whom=st.integers(0, 2), data=st.data())
    def transfer(self, who: int, whom: int, data: st.DataObject) -> None:
        given = self._some_of(who, data)
        self.ledger.transfer(given, self.parties[who], self.parties[whom])
        self.twin.give(set(given.tolist()), self.parties[who], self.parties[whom])

    @rule(who=st.integers(0, 2), data=st.data())
    def release(self, who: int, data: st.DataObject) -> None:
        given = self._some_of(who, data)
        self.ledger.release(given, self.parties[who])
        self.twin.release(set(given.tolist()), self.parties[who])

    @rule(who=st.integers(0, 2), page=st.integers(0, 25))
    def steal(self, who: int, page: int) -> None:
        if self.twin.owner.get(page) != self.parties[who]:
            with pytest.raises(CorruptionError):
                self.ledger.release(pages(page), self.parties[who])

    @rule()
    def launch(self) -> None:
        self.ledger.launch(StepId(self.next_step))
        self.twin.in_flight.append(self.next_step)
        self.next_step += 1

    @precondition(lambda self: self.twin.in_flight)
    @rule()
    def retire(self) -> None:
        self.ledger.retire(StepId(self.twin.in_flight[0]))
        self.twin.retire()

    @invariant()
    def same(self) -> None:
        names = {"free": FREE, "fenced": FENCED, "reserved": RESERVED}
        owners = [names.get(str(who), who) for _, who in sorted(self.twin.owner.items())]
        assert self.ledger.owners.tolist() == owners
        assert set(self.ledger.free_pages().tolist()) == self.twin.pages_of("free")
        assert self.ledger.num_free == len(self.twin.pages_of("free"))
        assert set(self.ledger.fenced_pages().tolist()) == self.twin.pages_of("fenced")
        for account in [*names.values(), *self.parties]:
            assert self.ledger.balance(account) == owners.count(account)

    def _some_of(self, who: int, data: st.DataObject) -> np.ndarray:
        owned = sorted(self.twin.pages_of(self.parties[who]))
        return pages(*data.draw(st.lists(st.sampled_from(owned), unique=True))) if owned else pages()


TestLedgerAgainstTwin = LedgerMachine.TestCase
TestLedgerAgainstTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
