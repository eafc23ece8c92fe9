"""Messages to one thread."""

from threading import Thread

from sojourn.engine.inbox import Inbox


def test_messages_come_in_order_and_once() -> None:
    inbox: Inbox[int] = Inbox()
    assert inbox.take() == []
    for number in range(3):
        assert inbox.put(number)
    assert inbox.take() == [0, 1, 2]
    assert inbox.take() == []


def test_waiting_ends_with_a_message_the_timeout_or_the_close() -> None:
    inbox: Inbox[str] = Inbox()
    assert inbox.wait(0.0) == []
    taken: list[list[str]] = []
    waiter = Thread(target=lambda: taken.append(inbox.wait(None)))
    waiter.start()
    inbox.put("message")
    waiter.join(timeout=30)
    assert taken == [["message"]]
    waiter = Thread(target=lambda: taken.append(inbox.wait(None)))
    waiter.start()
    assert inbox.close() == []
    waiter.join(timeout=30)
    assert taken == [["message"], []]


def test_a_closed_inbox_gives_back_what_it_has_and_takes_no_more() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    assert inbox.close() == [1]
    assert not inbox.put(2)
    assert inbox.close() == []
