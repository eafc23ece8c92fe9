"""Sessions that are trees: over HTTP as clients use them, and the tree itself against lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.native.calls import (
    Json,
    abort,
    close_session,
    generate,
    ids,
    open_session,
    post,
    refusal,
    running,
)
from tests.support.server import Server

from sojourn.api.native.live import LiveRequests
from sojourn.api.native.trees import Node, Place, TreeSession, TreeSessions
from sojourn.core.errors import ClientError


def grow(server: Server, session: str, new: list[int], count: int = 5, **place: object) -> Json:
    return generate(server, count, input_ids=new, session_params={"id": session, **place})


def rid_of(answer: Json) -> str:
    return str(answer["meta_info"]["id"])


@pytest.mark.http_scenario
def test_requests_go_on_from_any_earlier_one(server: Server) -> None:
    session = open_session(server, streaming=False)
    root = grow(server, session, ids(40))
    context = [*ids(40), *root["output_ids"]]
    for place, prompt in (
        ({}, [*context, *ids(6, 1)]),
        ({"offset": -1}, [*context[:-1], *ids(6, 1)]),
        ({"offset": 30}, [*context[:30], *ids(6, 1)]),
        ({"drop_previous_output": True}, [*ids(40), *ids(6, 1)]),
    ):
        branch = grow(server, session, ids(6, 1), rid=rid_of(root), **place)
        assert branch["meta_info"]["prompt_tokens"] == len(prompt)
        assert branch["output_ids"] == generate(server, 5, input_ids=prompt)["output_ids"]
        assert branch["meta_info"]["cached_tokens"] >= 16
        deeper = grow(server, session, ids(3, 2), rid=rid_of(branch))
        assert deeper["meta_info"]["prompt_tokens"] == len(prompt) + 5 + 3
    assert close_session(server, session) == {"session_id": session, "deferred": False, "freed_pages": 0}
    refusal(
        server,
        f"Invalid request: session id {session} does not exist",
        input_ids=ids(3),
        session_params={"id": session},
    )


@pytest.mark.http_scenario
def test_log_probabilities_of_a_node_s_prompt_count_from_its_root(server: Server) -> None:
    session = open_session(server, streaming=False)
    root = grow(server, session, ids(40))
    whole = [*ids(40), *root["output_ids"], *ids(6, 1)]
    fields: Json = {"return_logprob": True, "logprob_start_len": 20}
    asked = {"id": session, "rid": rid_of(root)}
    branch = generate(server, 3, input_ids=ids(6, 1), session_params=asked, **fields)["meta_info"]
    assert [entry[1] for entry in branch["input_token_logprobs"]] == whole[20:]
    alone = generate(server, 3, input_ids=whole, **fields)["meta_info"]
    assert branch["input_token_logprobs"] == alone["input_token_logprobs"]
    refusal(
        server,
        f"logprob_start_len, ({len(whole)}) is higher than the number of input tokens ({len(whole)}). "
        "Request with a lower logprob_start_len.",
        input_ids=ids(6, 1),
        session_params=asked,
        return_logprob=True,
        logprob_start_len=len(whole),
    )
    assert grow(server, session, ids(6, 1), rid=rid_of(root))["meta_info"]["prompt_tokens"] == len(whole)


@pytest.mark.http_scenario
def test_replacing_forgets_what_was_below(server: Server) -> None:
    session = open_session(server, streaming=False)
    root = grow(server, session, ids(10))
    child = grow(server, session, ids(4, 1), rid=rid_of(root))
    again = grow(server, session, ids(4, 2), rid=rid_of(root), replace=True)
    assert again["meta_info"]["prompt_tokens"] == 10 + 5 + 4
    message = "Invalid request session id"
    refusal(server, message, input_ids=ids(2), session_params={"id": session, "rid": rid_of(child)})
    fresh = grow(server, session, ids(7, 3), replace=True)
    assert fresh["meta_info"]["prompt_tokens"] == 7
    for gone in (root, again):
        refusal(server, message, input_ids=ids(2), session_params={"id": session, "rid": rid_of(gone)})


@pytest.mark.http_scenario
def test_a_replacement_that_is_refused_replaces_nothing(server: Server) -> None:
    session = open_session(server, streaming=False)
    root = grow(server, session, ids(10))
    child = grow(server, session, ids(4, 1), rid=rid_of(root))
    asked = {"id": session, "rid": rid_of(root), "replace": True}
    for refused in (
        {"input_ids": ids(4), "return_logprob": True, "logprob_start_len": 500},
        {"input_ids": ids(4), "rid": rid_of(root)},
        {"input_ids": ids(4090)},
    ):
        assert post(server, 2, session_params=asked, **refused).status_code == 400
    on = grow(server, session, ids(3, 2), rid=rid_of(child))
    assert on["meta_info"]["prompt_tokens"] == 10 + 5 + 4 + 5 + 3


@pytest.mark.http_scenario
def test_a_request_that_runs_is_no_place_to_go_on_but_may_be_replaced(server: Server) -> None:
    session = open_session(server, streaming=False)
    with running(server, input_ids=ids(5), session_params={"id": session}, rid="runs") as chunks:
        refusal(
            server,
            "Session request is appending to a request that hasn't finished.",
            input_ids=ids(2),
            session_params={"id": session, "rid": "runs"},
        )
        after = grow(server, session, ids(4, 1), rid="runs", replace=True)
        last = list(chunks)[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert after["meta_info"]["prompt_tokens"] <= 5 + len(last["output_ids"]) + 4
    with running(server, input_ids=ids(5), session_params={"id": session}, rid="next") as chunks:
        assert abort(server, "next") == 200
        said = list(chunks)[-1]["output_ids"]
    on = grow(server, session, ids(3), rid="next")
    assert on["meta_info"]["prompt_tokens"] == 5 + len(said) + 3


# -- the tree itself


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def nothing() -> None:
    """Nobody runs."""


def trees() -> TreeSessions:
    sessions = TreeSessions(Clock())
    sessions.open("s", "", None)
    return sessions


def begun(tree: TreeSession, rid: str, ids: list[int], place: Place | None = None, bos_id: int | None = None) -> Node:
    node = tree.plan(rid, ids, place or Place(), nothing, bos_id)
    tree.begin(node)
    tree.accept(node)
    return node


STEPS = st.lists(
    st.tuples(
        st.integers(0, 12),  # which earlier request; 0: none
        st.integers(-4, 6),  # offset
        st.booleans(),
        st.booleans(),
        st.lists(st.integers(0, 3), max_size=4),
        st.lists(st.integers(4, 7), max_size=4),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_contexts_are_those_of_plain_lists(steps: list[tuple[int, int, bool, bool, list[int], list[int]]]) -> None:
    sessions = trees()
    tree = sessions.find("s", "")
    assert tree is not None
    plain: dict[str, tuple[list[int], list[int], str | None]] = {}  # prompt, output, parent
    for number, (which, offset, replace, drops, new, output) in enumerate(steps):
        rid = str(number)
        parent = str(which - 1) if which else None
        place = Place(parent, offset, replace, drops)
        if parent is not None and parent not in plain:
            with pytest.raises(ClientError, match="Invalid request session id"):
                tree.plan(rid, new, place, nothing, 0)
            continue
        if replace:
            _forget_below(plain, parent)
        prompt = list(new)
        if parent is not None:
            before, said, _ = plain[parent]
            context = list(before) if drops else before + said
            prompt = (context[:offset] if offset else context) + (new[1:] if new[:1] == [0] else new)
        node = begun(tree, rid, new, place, 0)
        assert node.prompt() == prompt
        node.output = output
        tree.finish(node)
        plain[rid] = (prompt, output, parent)
        assert node.context() == prompt + output
    sessions.close("s", "")
    assert sessions.stock.num_tokens == 0


def _forget_below(plain: dict[str, tuple[list[int], list[int], str | None]], parent: str | None) -> None:
    if parent is None:
        plain.clear()
        return
    for rid in [rid for rid, (_, _, above) in plain.items() if above == parent]:
        _forget_below(plain, rid)
        del plain[rid]


def test_a_refused_request_leaves_no_trace_and_idle_sessions_expire() -> None:
    clock = Clock()
    sessions = TreeSessions(clock)
    sessions.open("s", "acme", 10.0)
    tree = sessions.find("s", "acme")
    assert tree is not None
    node = begun(tree, "a", [1, 2])
    with pytest.raises(ClientError, match="hasn't finished"):
        tree.plan("b", [3], Place("a"), nothing, None)
    with pytest.raises(ClientError, match="earlier request"):
        tree.plan("a", [3], Place(), nothing, None)
    tree.refuse(node)
    assert sessions.stock.num_tokens == 0
    assert sessions.find("s", "other") is None
    clock.now = 9.0
    assert sessions.find("s", "acme") is tree
    clock.now = 19.5
    assert sessions.find("s", "acme") is None


def test_a_replacement_may_have_the_name_of_what_it_replaces() -> None:
    sessions = trees()
    tree = sessions.find("s", "")
    assert tree is not None
    root = begun(tree, "a", [1, 2])
    tree.finish(root)
    below = begun(tree, "b", [3], Place("a"))
    again = tree.plan("b", [4, 5], Place("a", replace=True), nothing, None)
    assert root.children == [below]
    assert sessions.stock.num_tokens == 3
    tree.begin(again)
    assert sessions.stock.num_tokens == 5
    tree.accept(again)
    assert root.children == [again]
    assert sessions.stock.num_tokens == 4
    assert again.prompt() == [1, 2, 4, 5]
    with pytest.raises(ClientError, match="earlier request"):
        tree.plan("a", [6], Place("a", replace=True), nothing, None)


@pytest.mark.parametrize("place", [Place("a", replace=True), Place(replace=True)])
@pytest.mark.parametrize("name", ["b", "new"])
def test_a_replacement_that_the_engine_refuses_leaves_the_tree_as_it_was(place: Place, name: str) -> None:
    sessions, aborted = trees(), []
    tree = sessions.find("s", "")
    assert tree is not None
    root = begun(tree, "a", [1, 2])
    root.output = [7]
    tree.finish(root)
    below = begun(tree, "b", [3], Place("a"))
    tree.finish(below)
    runs = tree.plan("c", [4], Place("a"), lambda: aborted.append("c"), None)
    tree.begin(runs)
    tree.accept(runs)
    for attempt in range(2):
        node = tree.plan(name, [5, 6], place, nothing, None)
        tree.begin(node)
        assert sessions.stock.num_tokens == 7
        tree.refuse(node)
        assert (root.children, sessions.stock.num_tokens, aborted) == ([below, runs], 5, []), attempt
        assert tree.plan("d", [9], Place("b"), nothing, None).prompt() == [1, 2, 7, 3, 9]
    node = tree.plan(name, [5, 6], place, nothing, None)
    tree.begin(node)
    tree.accept(node)
    assert aborted == ["c"]
    assert sessions.stock.num_tokens == (2 if place.rid is None else 5)


@pytest.mark.parametrize("is_later_first", [False, True])
def test_of_two_replacements_the_later_one_stands_whichever_is_accepted_first(is_later_first: bool) -> None:
    sessions, aborted = trees(), []
    tree = sessions.find("s", "")
    assert tree is not None
    tree.finish(begun(tree, "a", [1]))
    first = tree.plan("a", [2], Place(replace=True), lambda: aborted.append("first"), None)
    tree.begin(first)
    second = tree.plan("b", [3], Place(replace=True), lambda: aborted.append("second"), None)
    tree.begin(second)
    assert sessions.stock.num_tokens == 3
    if is_later_first:
        tree.accept(second)
        tree.refuse(first)
    else:
        tree.accept(first)
        tree.accept(second)
    assert aborted == ["first"]
    assert sessions.stock.num_tokens == 1
    tree.finish(second)
    with pytest.raises(ClientError, match="Invalid request session id"):
        tree.plan("c", [4], Place("a"), nothing, None)
    assert tree.plan("c", [4], Place("b"), nothing, None).prompt() == [3, 4]
    sessions.close("s", "")
    assert sessions.stock.num_tokens == 0


def test_a_session_that_is_closed_meanwhile_keeps_no_tokens() -> None:
    for accepts in (False, True):
        sessions = trees()
        tree = sessions.find("s", "")
        assert tree is not None
        tree.finish(begun(tree, "a", [1]))
        node = tree.plan("a", [2], Place(replace=True), nothing, None)
        tree.begin(node)
        sessions.close("s", "")
        assert sessions.stock.num_tokens == 0
        if accepts:
            tree.accept(node)
            tree.finish(node)
        else:
            tree.refuse(node)
        assert sessions.stock.num_tokens == 0


def test_an_abort_reaches_its_own_tenant_only() -> None:
    requests = LiveRequests()
    with requests.hold("acme", "one"), requests.hold("other", "one"), requests.hold("acme", "two"):
        assert requests.abort("acme", "one") == 1
        assert requests.abort("acme", None) == 2
        assert requests.abort(None, "one") == 2
        assert requests.abort("nobody", None) == 0
        with pytest.raises(ClientError, match="Duplicate"), requests.hold("acme", "two"):
            raise AssertionError("two of one name")
    assert requests.abort(None, None) == 0
