"""Engine options at the door, the cache folder, and how many threads a machine offers."""

from pathlib import Path

import pytest

from sojourn.app.config import EngineOptions, cache_dir, overlaps, physical_cores
from sojourn.core.errors import ClientError


@pytest.mark.parametrize(
    ("options", "param", "bound"),
    [
        (EngineOptions(threads=0), "threads", "from 1 to"),
        (EngineOptions(threads=True), "threads", "from 1 to"),
        (EngineOptions(context=1), "context", "from 2 to"),
        (EngineOptions(context=4096, pool_tokens=1024), "context", "1,024"),
        (EngineOptions(page_size=0), "page_size", "from 1 to 256"),
        (EngineOptions(page_size=24), "page_size", "power of two"),
        (EngineOptions(page_size=512), "page_size", "from 1 to 256"),
        (EngineOptions(pool_tokens=0), "pool_tokens", "from 2 to"),
        (EngineOptions(max_running=0), "max_running", "from 1 to"),
        (EngineOptions(chunk=0), "chunk", "from 1 to"),
        (EngineOptions(weights="2bit"), "weights", "4bit, 8bit, f32"),  # type: ignore[arg-type]
        (EngineOptions(kv_dtype="bf16"), "kv_dtype", "f16, f32"),  # type: ignore[arg-type]
        (EngineOptions(cache="lru"), "cache", "radix, none"),  # type: ignore[arg-type]
        (EngineOptions(strict_mem_check=3), "strict_mem_check", "from 0 to 2"),
        (EngineOptions(seed=-1), "seed", "from 0 to"),
        (EngineOptions(drafts_max=0), "drafts_max", "from 1 to 64"),
        (EngineOptions(speculate=""), "speculate", "at least 1"),
        (EngineOptions(overlap="yes"), "overlap", "true or false"),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_option_is_refused_with_its_name_and_bound(
    options: EngineOptions, param: str, bound: str
) -> None:
    with pytest.raises(ClientError, match=bound) as caught:
        options.check()
    assert caught.value.param == param


def test_the_defaults_are_lawful() -> None:
    EngineOptions().check()


def test_steps_overlap_where_a_core_is_left_for_python_or_as_asked_for() -> None:
    assert not overlaps(EngineOptions(threads=2), cores=2)
    assert overlaps(EngineOptions(threads=1), cores=2)
    assert overlaps(EngineOptions(threads=2, overlap=True), cores=2)
    assert not overlaps(EngineOptions(threads=1, overlap=False), cores=2)
    assert not overlaps(EngineOptions()), "a compute thread for every core leaves none"


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_dir({"SOJOURN_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/sojourn")
    assert cache_dir({}) == Path.home() / ".cache" / "sojourn"


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores(frozenset({0, 1, 2, 3}), tmp_path) == 2
    assert physical_cores(frozenset({0, 2}), tmp_path) == 1
    assert physical_cores(frozenset({0, 1}), tmp_path / "absent") == 2
