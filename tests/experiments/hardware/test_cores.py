"""Cores, quota and memory are those this process may use, not those the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments.hardware import allowed_cores, cpu_devices, devices, memory_bytes
from experiments.hardware.cores import cpu_quota
from experiments.records import ExperimentError, FailureKind

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """A file tree that looks like a machine's /proc and /sys."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_version_2_quota_of_a_parent_group_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/system.slice/job.service\n",
        V2_MOUNT,
        {
            "sys/fs/cgroup/system.slice/job.service/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/system.slice/job.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/memory.max": "1073741824\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert len(allowed_cores(root)) == 1
    assert memory_bytes(root) == 1 << 30


def test_a_version_1_quota_counts_also_where_the_mount_starts_below_the_root(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:cpu,cpuacct:/job\n4:memory:/docker/abc\n0::/\n",
        V1_MOUNTS,
        {
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
        },
    )
    assert cpu_quota(root) == 0.5
    assert len(allowed_cores(root)) == 1  # never none
    assert memory_bytes(root) == 512 << 20


def test_no_limit_leaves_the_affinity(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:cpu:/\n4:memory:/\n",
        V1_MOUNTS,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_quota(root) is None
    assert allowed_cores(root) == tuple(sorted(os.sched_getaffinity(0)))
    assert memory_bytes(root) > 1 << 28


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_bytes(tmp_path) > 1 << 28


def test_a_narrower_affinity_narrows_the_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert allowed_cores() == (min(before),)
        assert cpu_devices()[0].cores == (min(before),)
    finally:
        os.sched_setaffinity(0, before)


def test_cpu_devices_are_disjoint_and_share_out_all_cores() -> None:
    cores = allowed_cores()
    for n in range(1, len(cores) + 1):
        made = cpu_devices(n)
        assert [d.name for d in made] == [f"cpu:{i}" for i in range(n)]
        assert sorted(core for d in made for core in d.cores) == list(cores)
        assert max(len(d.cores) for d in made) - min(len(d.cores) for d in made) <= 1


def test_more_cpu_devices_than_cores_are_refused_with_the_valid_number() -> None:
    with pytest.raises(ExperimentError) as caught:
        cpu_devices(len(allowed_cores()) + 1)
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED
    assert str(len(allowed_cores())) in (caught.value.failure.fix or "")


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["gpu"], "no device"),
        (["cpu:0", "cpu:0"], "twice"),
        (["cpu:1"], "numbered from 0"),
        (["cpu:-1"], "no device"),
        ([], "no device is given"),
        (["cuda:4095"], "there is no device cuda:4095"),
    ],
)
def test_a_wrong_list_of_devices_is_refused_by_name(names: list[str], word: str) -> None:
    with pytest.raises(ExperimentError, match=word) as caught:
        devices(names)
    assert caught.value.failure.fix


def test_devices_default_to_one_cpu_with_all_cores() -> None:
    assert devices()[0].cores == allowed_cores()
    assert devices(["cpu:0"]) == cpu_devices(1)
