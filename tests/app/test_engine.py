"""The library on the real model: turns, what they reuse, how they end, and what is refused."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sojourn import ClientError, ConflictError, Engine, EngineStoppedError, ModelError, Session
from sojourn.app.build import World, assemble
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.app.turn import TurnState
from sojourn.models.progress import SilentProgress

GREEDY = 0.0
SYSTEM_TOKEN = 9690  # "system" in SmolLM2's vocabulary


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        "smollm2", context=1024, threads=2, max_running=4, pool_tokens=4096, seed=1, strict_mem_check=2
    ) as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with engine.open_session() as session:
        yield session


def test_a_second_turn_resumes_on_the_first_and_equals_a_fresh_run(engine: Engine, session: Session) -> None:
    first = session.turn("Hello!", max_tokens=20, temperature=GREEDY).wait()
    second = session.turn("What did I just say?", max_tokens=20, temperature=GREEDY).wait()
    said = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.cached_tokens in {said, said - 1}
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert second.prompt_ids.count(SYSTEM_TOKEN) == 1
    assert second.usage.prompt_tokens == len(second.prompt_ids)
    fresh = engine.generate(token_ids=second.prompt_ids, max_tokens=20, temperature=GREEDY).wait()
    assert fresh.output_ids == second.output_ids
    assert session.history == second.prompt_ids + second.output_ids
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2


def test_deltas_add_up_to_the_text(engine: Engine, session: Session) -> None:
    turn = session.turn("Count to five, with a smiley.", max_tokens=24, temperature=GREEDY)
    deltas = list(turn)
    assert "".join(delta.text for delta in deltas) == turn.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == turn.output_ids
    assert turn.text == engine.decode(turn.output_ids)
    assert turn.usage.completion_tokens == len(turn.output_ids)


def test_token_ids_are_appended_as_they_are(engine: Engine, session: Session) -> None:
    ids = engine.encode("The capital of France is")
    turn = session.turn(token_ids=ids, max_tokens=4, temperature=GREEDY).wait()
    assert turn.prompt_ids == tuple(ids)
    more = engine.encode(" And of Italy")
    following = session.turn(token_ids=more, max_tokens=4, temperature=GREEDY).wait()
    assert following.prompt_ids == turn.prompt_ids + turn.output_ids + tuple(more)


def test_a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    ids = engine.encode("one two three four five six")
    free = engine.generate(token_ids=ids, max_tokens=30, temperature=GREEDY).wait()
    stop = free.text[10:14]
    turn = engine.generate(token_ids=ids, max_tokens=30, temperature=GREEDY, stop=[stop]).wait()
    assert turn.finish_reason == "stop"
    assert turn.text == free.text[: free.text.index(stop)]
    assert turn.output_ids == free.output_ids[: len(turn.output_ids)]


def test_an_interrupted_turn_keeps_what_was_said_and_the_conversation_goes_on(engine: Engine, session: Session) -> None:
    turn = session.turn("Tell me a long story.", temperature=GREEDY, ignore_eos=True)
    for _ in turn:
        if len(turn.output_ids) >= 5:
            turn.stop()
    assert turn.finish_reason == "interrupt"
    assert session.history == turn.prompt_ids + turn.output_ids
    following = session.turn("Go on.", max_tokens=5, temperature=GREEDY).wait()
    assert following.usage.cached_tokens >= len(turn.prompt_ids) + len(turn.output_ids) - 1
    glue = following.prompt_ids[len(turn.prompt_ids) + len(turn.output_ids) :]
    assert glue[0] == engine.encode("<|im_end|>")[0], "the open message is ended first"


def test_leaving_the_loop_stops_the_turn(session: Session) -> None:
    for _ in session.turn("Tell me a long story.", temperature=GREEDY, ignore_eos=True):
        break
    assert session.messages[-1]["role"] == "assistant"
    assert session.turn("Hello again.", max_tokens=3).wait().finish_reason in {"stop", "length"}


def test_a_dropped_turn_does_not_block_the_next(session: Session) -> None:
    session.turn("Tell me a long story.", ignore_eos=True)
    assert session.turn("Hello.", max_tokens=3).wait().finish_reason in {"stop", "length"}


def test_stopping_at_once_leaves_a_lawful_history(session: Session) -> None:
    before = session.history
    turn = session.turn("word " * 600, temperature=GREEDY)
    turn.stop()
    turn.wait()
    if turn.finish_reason == "abort":
        assert session.history == before
    else:
        assert session.history == turn.prompt_ids + turn.output_ids
    assert session.turn("Hello.", max_tokens=3).wait().usage.completion_tokens >= 1


def test_a_turn_past_the_context_is_refused_with_both_lengths(session: Session) -> None:
    session.turn("Hello!", max_tokens=5).wait()
    before = session.history
    with pytest.raises(ClientError, match=r"1[, ]?0\d\d|1024") as caught:
        session.turn("word " * 1100)
    assert "1024" in str(caught.value).replace(",", "")
    assert session.history == before
    assert session.turn("Hello?", max_tokens=5).wait().usage.cached_tokens >= len(before) - 1


def test_one_turn_at_a_time(session: Session) -> None:
    turn = session.turn("Tell me a long story.", ignore_eos=True)
    with pytest.raises(ConflictError, match="running"):
        session.turn("And another.")
    turn.stop()
    turn.wait()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": -1}, "logprobs"),
        ({"seed": -1}, "seed"),
    ],
)
def test_an_option_out_of_bounds_changes_nothing(session: Session, options: dict[str, object], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        session.turn("Hello", **options)  # type: ignore[arg-type]
    assert caught.value.param == param
    assert session.history == ()


@pytest.mark.parametrize("token_ids", [[-1], [49152], [2**31], [1e20], ["x"], [None]])
def test_token_ids_out_of_range_are_refused(session: Session, token_ids: list[int]) -> None:
    with pytest.raises(ClientError, match="token_ids"):
        session.turn(token_ids=token_ids)
    with pytest.raises(ClientError, match="exactly one"):
        session.turn("Hello", token_ids=[1])
    with pytest.raises(ClientError, match="exactly one"):
        session.turn()


@pytest.mark.parametrize("text", [5, b"bytes", None, ["a"], "\ud800"])
def test_what_is_no_text_has_no_token_ids(engine: Engine, text: str) -> None:
    with pytest.raises(ClientError) as caught:
        engine.encode(text)
    assert caught.value.param == "text"


@pytest.mark.parametrize("token_ids", ["abc", 5, None, [-1], [49152], [1.0], ["x"], [True]])
def test_what_are_no_token_ids_have_no_text(engine: Engine, token_ids: list[int]) -> None:
    with pytest.raises(ClientError) as caught:
        engine.decode(token_ids)
    assert caught.value.param == "token_ids"


def test_input_that_is_too_long_is_named_as_it_came(engine: Engine, session: Session) -> None:
    text = "word " * engine.context
    for ask in (session.turn, engine.generate):
        with pytest.raises(ClientError) as caught:
            ask(text)
        assert (caught.value.param, caught.value.code) == ("message", "context_length_exceeded")
        with pytest.raises(ClientError) as caught:
            ask(token_ids=engine.encode(text))
        assert (caught.value.param, caught.value.code) == ("token_ids", "context_length_exceeded")
    assert session.history == ()


@pytest.mark.parametrize("message", ["", "\ud800", 5, b"bytes"])
def test_a_message_that_is_no_text_is_refused(engine: Engine, session: Session, message: str) -> None:
    with pytest.raises(ClientError) as caught:
        session.turn(message)
    assert caught.value.param == "message"
    with pytest.raises(ClientError) as caught:
        engine.open_session(system=message)
    assert caught.value.param == "system"


def test_the_same_seed_gives_the_same_tokens(engine: Engine) -> None:
    turns = [engine.generate("Hi!", max_tokens=12, temperature=1.0, seed=seed).wait() for seed in (3, 3, 4)]
    assert turns[0].output_ids == turns[1].output_ids
    assert turns[0].output_ids != turns[2].output_ids


def test_logprobs_come_with_the_tokens(engine: Engine) -> None:
    turn = engine.generate("Hi!", max_tokens=3, temperature=GREEDY, logprobs=2)
    for delta in turn:
        for token, sample in zip(delta.token_ids, delta.logprobs, strict=True):
            assert sample.token == token
            assert sample.logprob is not None
            assert sample.logprob <= 0
            assert len(sample.top) == 2
            assert sample.top[0][0] == token, "greedy draws the likeliest"
            assert sample.top[0][1] == pytest.approx(sample.logprob, abs=1e-5)


def test_conversations_at_the_same_time_do_not_disturb_each_other(engine: Engine) -> None:
    questions = ["Name a colour.", "Count to three.", "Say hello.", "What is a dog?"]

    def ask(question: str) -> tuple[int, ...]:
        with engine.open_session() as session:
            return session.turn(question, max_tokens=16, temperature=GREEDY).wait().output_ids

    alone = [ask(question) for question in questions]
    with ThreadPoolExecutor(len(questions)) as pool:
        assert list(pool.map(ask, questions)) == alone


def test_a_system_message_is_said_once(engine: Engine) -> None:
    with engine.open_session(system="You are a pirate.") as session:
        first = session.turn("Hello", max_tokens=4).wait()
        second = session.turn("Hello", max_tokens=4).wait()
    pirate = engine.encode(" pirate")[0]
    assert first.prompt_ids.count(pirate) == second.prompt_ids[: len(first.prompt_ids)].count(pirate) == 1
    assert second.prompt_ids.count(SYSTEM_TOKEN) == 1


def test_a_closed_session_is_gone_and_closing_twice_is_fine(engine: Engine) -> None:
    session = engine.open_session()
    session.turn("Hello", max_tokens=4).wait()
    assert session.pages_held > 0
    session.close()
    session.close()
    with pytest.raises(ClientError, match="no session"):
        session.turn("Hello")


def test_closing_a_session_stops_its_turn(engine: Engine) -> None:
    session = engine.open_session()
    turn = session.turn("Tell me a long story.", ignore_eos=True)
    session.close()
    assert turn.finish_reason in {"abort", "interrupt"}


def test_a_closed_engine_says_so() -> None:
    engine = Engine("smollm2", context=256, threads=1)
    session = engine.open_session()
    engine.close()
    engine.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        session.turn("Hello")
    session.close()


def test_a_model_without_a_template_continues_text() -> None:
    with Engine("gemma3-270m", context=512, threads=2) as engine:
        assert not engine.has_chat_template
        with pytest.raises(ClientError, match="no chat template"):
            engine.open_session(system="You are terse.")
        with engine.open_session() as session:
            turn = session.turn("The capital of France is", max_tokens=8, temperature=GREEDY).wait()
            assert turn.usage.completion_tokens == 8
            assert engine.decode(turn.prompt_ids) == "The capital of France is"


def world(free_memory: int) -> World:
    return World(cache_dir(), time.monotonic, time.strftime, seed=0, free_memory=free_memory)


def test_too_little_memory_is_told_before_anything_is_allocated() -> None:
    options = EngineOptions(context=8192)
    with pytest.raises(
        ClientError, match=r"needs 0\.4 GiB, 0\.3 GiB free; largest context that fits: \d,\d+"
    ) as caught:
        assemble("smollm2", options, world(320 << 20), SilentProgress())
    assert caught.value.code == "memory"


def test_a_context_over_the_models_own_is_refused() -> None:
    with pytest.raises(ClientError, match=r"10,000 is over the model's own: smollm2 has 8,192"):
        Engine("smollm2", context=10_000)


def test_a_model_that_does_not_exist_names_what_does(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2"):
        Engine(tmp_path / "absent")


@pytest.mark.parametrize("ids", ["abc", "", b"abc", 5, {1, 2}, {1: 2}, iter([1]), [1.0], [10**5000]])
def test_what_is_no_list_of_token_ids_is_refused_by_name(session: Session, ids: object) -> None:
    with pytest.raises(ClientError, match="token id") as caught:
        session.turn(token_ids=ids)  # type: ignore[arg-type]
    assert caught.value.param == "token_ids"


def test_an_interrupt_just_before_the_engine_is_asked_leaves_a_usable_conversation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Session._hold

    def interrupted(self: Session, state: TurnState) -> None:
        hold(self, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_hold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.turn(token_ids=[1, 2, 3])
    assert session.turn(token_ids=[1, 2, 3], max_tokens=1).wait().finish_reason in {"length", "stop"}
