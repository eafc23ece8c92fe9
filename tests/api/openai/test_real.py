"""SmolLM2 behind the OpenAI surfaces, and the examples of the documentation as a reader would run them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.api.conftest import quiet
from tests.support.server import Server, serving

from sojourn.app.config import cache_dir
from sojourn.models.store import LoadedModel

pytestmark = pytest.mark.http_scenario
ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs" / "serving.md"]
SHOWN = "http://127.0.0.1:8000"


def examples(language: str, word: str) -> list[str]:
    found = [block for page in PAGES for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)]
    return [block for block in found if word in block]


@pytest.fixture(scope="module")
def smol(smollm2: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("smol")
    (folder / "cache").symlink_to(Path(cache_dir()), target_is_directory=True)
    with serving(folder, "--context", "1024", "--pool-tokens", "4096", model="smollm2") as server:
        yield server
        quiet(server)


def test_a_session_says_what_the_whole_conversation_resent_would(smol: Server) -> None:
    with openai.OpenAI(base_url=f"{smol.url}/v1", api_key="none", max_retries=0) as client:
        session = smol.http.post("/v1/sessions", json={}).json()["id"]
        asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 16, "temperature": 0}
        history: list[Any] = []
        for question in ("Name a colour.", "Another one?", "Say 😀 and 你好."):
            new: Any = {"role": "user", "content": question}
            within = client.chat.completions.create(**asked, messages=[new], extra_body={"session_id": session})
            resent = client.chat.completions.create(**asked, messages=[*history, new])
            assert within.choices[0].message.content == resent.choices[0].message.content
            assert within.usage is not None
            assert resent.usage is not None
            assert within.usage.prompt_tokens == resent.usage.prompt_tokens
            history += [new, within.choices[0].message.model_dump()]


@pytest.mark.parametrize("example", examples("sh", "curl"))
def test_the_curl_examples_answer(smol: Server, example: str) -> None:
    done = subprocess.run(
        ["sh", "-c", example.replace(SHOWN, smol.url)], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("example", examples("python", "openai"))
def test_the_python_examples_run(smol: Server, example: str) -> None:
    program = example.replace(SHOWN, smol.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    cached = [int(number) for number in re.findall(r"(\d+) of \d+ prompt tokens were cached", done.stdout)]
    assert len(cached) == 2
    assert cached[1] > 30


def test_there_are_examples() -> None:
    assert len(examples("sh", "curl")) == 2
    assert len(examples("python", "openai")) == 1
