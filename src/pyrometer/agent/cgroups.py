"""Finds the pod and container of a process, from its cgroup or else from its mounts.

Supports both cgroup versions, the systemd and the cgroupfs driver, and containerd, CRI-O and Docker. Seen from a
container with its own cgroup namespace, paths begin with `/../` but end in the same way.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_CGROUP_BYTES = 64 << 10
_MOUNTINFO_BYTES = 1 << 20

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # static pods have a hash without dashes
_POD = re.compile(rf"pod({_UID})(?=[./:]|$)", re.MULTILINE)
_CONTAINER = re.compile(r"[/:-]([0-9a-f]{64})(?=[./]|$)", re.MULTILINE)
_POD_FOLDER = re.compile(rf"/pods/({_UID})/")


class ContainerCgroup(NamedTuple):
    """The container of a process; empty if it is unknown or if there is none."""

    pod_uid: str = ""
    container_id: str = ""


def container_of(pid: int, proc: Path) -> ContainerCgroup | None:
    """The container of a process; None when the process is gone."""
    try:
        found = from_cgroup(_read(proc / str(pid) / "cgroup", _CGROUP_BYTES))
        if not found.pod_uid:
            found = found._replace(pod_uid=pod_from_mountinfo(_read(proc / str(pid) / "mountinfo", _MOUNTINFO_BYTES)))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:  # not permitted: only the existence of the process is known
        return ContainerCgroup()
    return found


def from_cgroup(text: str) -> ContainerCgroup:
    """Parses /proc/PID/cgroup."""
    pod, container = _POD.search(text), _CONTAINER.search(text)
    return ContainerCgroup(_dashed(pod[1]) if pod else "", container[1] if container else "")


def pod_from_mountinfo(text: str) -> str:
    """Finds the pod whose folder is mounted in the process (its /etc/hosts always is).

    A process of the node itself sees the folders of all pods at their original paths, which are ignored.
    """
    found = set()
    for line in text.splitlines():
        fields = line.split(" ", 5)
        if (
            len(fields) == 6
            and (pod := _POD_FOLDER.search(fields[3] + "/"))
            and not _POD_FOLDER.search(fields[4] + "/")
        ):
            found.add(pod[1])
    return _dashed(found.pop()) if len(found) == 1 else ""


def _dashed(uid: str) -> str:
    return uid.replace("_", "-")


def _read(path: Path, max_bytes: int) -> str:
    with path.open("rb") as file:
        return file.read(max_bytes).decode(errors="replace")
