"""The arithmetic before allocation, on an invented machine."""

from pathlib import Path

import pytest

from sojourn.app.memory import GIB, Demand, available_memory, check_fits, largest_context
from sojourn.core.errors import ClientError

MIB = 1 << 20
DEMAND = Demand(weight_bytes=GIB, kv_bytes=lambda context: context * 100_000, workspace_bytes=100 * MIB)


def machine(
    root: Path, *, available_kib: int, limit: str = "max", used: int = 0, inactive: int = 0
) -> tuple[Path, Path]:
    proc, cgroup = root / "proc", root / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n")
    (cgroup / "memory.max").write_text(f"{limit}\n")
    (cgroup / "memory.current").write_text(f"{used}\n")
    (cgroup / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    return proc, cgroup


def test_the_smaller_of_machine_and_control_group_counts(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_kib=4096, limit=str(3 * MIB), used=2 * MIB, inactive=MIB // 2)
    assert available_memory(proc, cgroup) == MIB + MIB // 2


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_kib=8192)
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("0::/system.slice/sojourn.service\n")
    for group, limit in (("system.slice", 3 * MIB), ("system.slice/sojourn.service", 4 * MIB)):
        (cgroup / group).mkdir()
        (cgroup / group / "memory.max").write_text(f"{limit}\n")
        (cgroup / group / "memory.current").write_text("0\n")
    assert available_memory(proc, cgroup) == 3 * MIB
    (cgroup / "system.slice/sojourn.service/memory.max").write_text(f"{2 * MIB}\n")
    assert available_memory(proc, cgroup) == 2 * MIB


def test_groups_of_version_1_are_read_below_their_controller(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_kib=8192)
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("7:cpu,cpuacct:/a\n4:memory:/jobs/a\n0::/\n")
    (cgroup / "memory" / "jobs" / "a").mkdir(parents=True)
    (cgroup / "memory" / "jobs" / "memory.limit_in_bytes").write_text(f"{MIB}\n")
    (cgroup / "memory" / "jobs" / "memory.usage_in_bytes").write_text("0\n")
    assert available_memory(proc, cgroup) == MIB


def test_a_group_outside_the_mount_leaves_its_root(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_kib=8192, limit=str(MIB))
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("0::/../../elsewhere\n")
    assert available_memory(proc, cgroup) == MIB


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_kib=4096)
    assert available_memory(proc, cgroup) == 4 * MIB


def test_an_unknown_system_is_not_guessed_at(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None
    check_fits(DEMAND, None, 10**9)


def test_the_message_has_need_free_and_what_would_fit() -> None:
    with pytest.raises(ClientError) as caught:
        check_fits(DEMAND, 2 * GIB, 20_000)
    assert caught.value.param == "context"
    assert "needs 3.0 GiB, 2.0 GiB free; largest context that fits: 9,472" in str(caught.value)


def test_a_pool_that_was_asked_for_is_what_the_refusal_names() -> None:
    with pytest.raises(ClientError, match=r"for a pool of 20,000 tokens: .* largest pool that fits: 9,472") as caught:
        check_fits(DEMAND, 2 * GIB, 20_000, is_pool=True)
    assert caught.value.param == "pool_tokens"


def test_what_it_says_fits_does_fit_and_no_more() -> None:
    fits = largest_context(DEMAND, 2 * GIB, 20_000)
    check_fits(DEMAND, 2 * GIB, fits)
    with pytest.raises(ClientError):
        check_fits(DEMAND, 2 * GIB, fits + 256)


def test_where_nothing_fits_it_says_so() -> None:
    with pytest.raises(ClientError, match="no context fits"):
        check_fits(DEMAND, GIB, 4096)
