"""The native dialect over SmolLM2: a conversation by token ids, streamed, whole and resent, says the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.conftest import quiet
from tests.api.native.calls import abort_running, close_session, generate, open_session, stream, turn
from tests.support.server import Server, serving
from tests.support.text import tokenizer_of

from sojourn.app.config import cache_dir
from sojourn.models.store import LoadedModel

pytestmark = pytest.mark.http_scenario


@pytest.fixture(scope="module")
def smol(smollm2: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("smol")
    (folder / "cache").symlink_to(Path(cache_dir()), target_is_directory=True)
    with serving(folder, "--context", "1024", "--pool-tokens", "4096", model="smollm2") as server:
        yield server


def test_a_conversation_says_what_its_history_resent_would(smol: Server, smollm2: LoadedModel) -> None:
    tokenizer = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    session = open_session(smol)
    history: list[int] = []
    said = 0
    for question in ("<|im_start|>user\nName a colour.", "\n<|im_start|>user\nAnother?", "\n<|im_start|>user\nWhy?"):
        new = tokenizer.encode(f"{question}<|im_end|>\n<|im_start|>assistant\n")
        abort_running(smol, input_ids=new, session_params={"id": session})
        answer = stream(smol, 24, input_ids=new, session_params={"id": session})[-1]
        history += new
        assert answer["meta_info"]["prompt_tokens"] == len(history)
        assert answer["meta_info"]["cached_tokens"] >= said - 1
        resent = generate(smol, 24, input_ids=history)
        assert (answer["output_ids"], answer["text"]) == (resent["output_ids"], resent["text"])
        history += answer["output_ids"]
        said = len(history)
    reason = answer["meta_info"]["finish_reason"]
    assert reason["type"] in ("stop", "length")
    bos = smollm2.text.bos_id
    assert bos is not None
    last = turn(smol, session, [bos, *tokenizer.encode("And?")], 4)
    assert last["meta_info"]["prompt_tokens"] == said + len(tokenizer.encode("And?"))
    close_session(smol, session)
    quiet(smol)
