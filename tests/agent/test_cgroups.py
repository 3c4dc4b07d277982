"""From processes to pods, in every form in which kernels, drivers and runtimes write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.agent.cgroups import ContainerCgroup, container_of, from_cgroup, pod_from_mountinfo

UID = "0f3c9c2e-4b7d-4f0a-9f65-6a1d8f5f7a10"
UNDERSCORED = UID.replace("-", "_")
ID = "3d6e0f" + "ab12cd34" * 7 + "99"
HASH = "5f7c3a1d9e8b4c2f6a0d1e2f3a4b5c6d"  # of a static pod

FORMS = {
    "v2, systemd, containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        ContainerCgroup(UID, ID),
    ),
    "v2, systemd, guaranteed, seen from another cgroup namespace": (
        f"0::/../../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        ContainerCgroup(UID, ID),
    ),
    "v2, systemd, CRI-O, with a cgroup below": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/crio-{ID}.scope/container",
        ContainerCgroup(UID, ID),
    ),
    "v2, cgroupfs, containerd": (f"0::/kubepods/besteffort/pod{UID}/{ID}", ContainerCgroup(UID, ID)),
    "v2, systemd inside the container": (f"0::/kubepods/pod{UID}/{ID}/init.scope", ContainerCgroup(UID, ID)),
    "v1, cgroupfs, docker": (
        f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n11:devices:/kubepods/burstable/pod{UID}/{ID}\n"
        f"1:name=systemd:/kubepods/burstable/pod{UID}/{ID}",
        ContainerCgroup(UID, ID),
    ),
    "v1, systemd, docker": (
        f"11:memory:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope",
        ContainerCgroup(UID, ID),
    ),
    "v1, containerd whose driver differs from the kubelet's": (
        f"9:cpu:/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
        ContainerCgroup(UID, ID),
    ),
    "kind": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        ContainerCgroup(UID, ID),
    ),
    "a static pod": (f"0::/kubepods/burstable/pod{HASH}/{ID}", ContainerCgroup(HASH, ID)),
    "docker alone, systemd": (f"0::/system.slice/docker-{ID}.scope", ContainerCgroup("", ID)),
    "docker alone, cgroupfs": (f"5:cpuset:/docker/{ID}", ContainerCgroup("", ID)),
    "a service of the node": ("0::/system.slice/sshd.service", ContainerCgroup()),
    "a login": ("0::/user.slice/user-1000.slice/session-3.scope", ContainerCgroup()),
    "a folder that looks like a pod": (f"0::/podman/pod-{UID[:20]}", ContainerCgroup()),
    "nothing": ("", ContainerCgroup()),
}


@pytest.mark.parametrize(("text", "found"), FORMS.values(), ids=FORMS)
def test_from_cgroup_finds_pod_and_container(text: str, found: ContainerCgroup) -> None:
    assert from_cgroup(text + "\n") == found


IN_A_POD = f"""\
1521 1400 0:325 / / rw,relatime master:512 - overlay overlay rw,lowerdir=/var/lib/containerd/l/AB
1530 1521 259:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/root rw
1531 1521 259:1 /var/lib/kubelet/pods/{UID}/containers/train/6b /dev/termination-log rw - ext4 /dev/root rw
1532 1521 0:300 / /var/run/secrets/kubernetes.io/serviceaccount ro - tmpfs tmpfs rw
"""
ON_THE_NODE = f"""\
26 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
900 26 0:300 / /var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~projected/token rw - tmpfs tmpfs rw
901 26 259:1 /var/lib/kubelet/pods/{UID}/x /var/lib/kubelet/pods/{UID}/volume-subpaths/x rw - ext4 /dev/root rw
"""


def test_pod_from_mountinfo_finds_pod_of_mounted_folder() -> None:
    assert pod_from_mountinfo(IN_A_POD) == UID


def test_pod_from_mountinfo_ignores_mounts_of_the_node() -> None:
    assert pod_from_mountinfo(ON_THE_NODE) == ""


def test_pod_from_mountinfo_of_two_pods_is_empty() -> None:
    other = IN_A_POD.replace(UID, UID[::-1].replace("-", "")[:32].ljust(32, "0"))
    assert pod_from_mountinfo(IN_A_POD + other) == ""


def test_container_of_reads_cgroup_then_mounts(tmp_path: Path) -> None:
    for pid, cgroup, mounts in (
        (1, f"0::/kubepods/pod{UID}/{ID}\n", ""),
        (2, "0::/\n", IN_A_POD),
        (3, "0::/system.slice/cron.service\n", ON_THE_NODE),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroup)
        (tmp_path / str(pid) / "mountinfo").write_text(mounts)
    assert container_of(1, tmp_path) == ContainerCgroup(UID, ID)
    assert container_of(2, tmp_path) == ContainerCgroup(UID, "")
    assert container_of(3, tmp_path) == ContainerCgroup()
    assert container_of(4, tmp_path) is None


def test_container_of_this_process_is_not_none() -> None:
    assert container_of(1, Path("/proc")) is not None


@given(st.text(), st.text())
def test_any_cgroup_and_mountinfo_text_is_parsed(cgroup: str, mounts: str) -> None:
    found = from_cgroup(cgroup)
    assert len(found.container_id) in (0, 64)
    assert len(found.pod_uid) in (0, 32, 36)
    assert len(pod_from_mountinfo(mounts)) in (0, 32, 36)
