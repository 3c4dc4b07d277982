"""`pyrometer doctor`: its verdict and the missing rules. tests/kube and tests/prometheus run it on real servers."""

from __future__ import annotations

from pyrometer.cli.commands.doctor import Diagnosis, _json, _print
from pyrometer.collect.kubernetes.doctor import ResourceCheck
from pyrometer.collect.prometheus.doctor import SeriesCount


def checked(plural: str, verb: str, state: str, group: str = "") -> ResourceCheck:
    return ResourceCheck(plural, group, plural, verb, state, "", f"{plural} are unknown")


def diagnosis(*checks: ResourceCheck) -> Diagnosis:
    return Diagnosis("https://cluster", [*checks], 3, 1, None, [], [], [])


def test_doctor_without_anything_to_check_is_a_usage_error(pyrometer):
    error = pyrometer("doctor", "--no-kube").failed(2)
    assert error == "Nothing to check: pass --prometheus URL, or drop --no-kube."


def test_rules_join_resources_with_the_same_verbs():
    found = diagnosis(
        checked("pods", "list", "denied"),
        checked("pods", "watch", "denied"),
        checked("nodes", "list", "denied"),
        checked("nodes", "watch", "denied"),
        checked("jobs", "get", "denied", "batch"),
        checked("events", "list", "ok"),
    )
    assert found.rules == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
    ]


def test_diagnosis_without_denied_checks_needs_no_rules():
    found = diagnosis(checked("pods", "list", "ok"))
    assert (found.bad, found.rules) == ([], [])
    assert _json(found)["ok"] is True


def test_doctor_prints_missing_permissions_with_the_rules_to_add(capsys):
    _print(diagnosis(checked("nodes", "list", "ok"), checked("pods", "list", "denied")))
    printed = capsys.readouterr().out
    assert "Kubernetes at https://cluster" in printed
    assert "1 GPU exporter running." in printed
    assert "not allowed" in printed
    assert "resources: [pods]" in printed
    assert "verbs: [list]" in printed


def test_doctor_prints_what_is_unknown_without_a_series(capsys):
    series = [SeriesCount("GPU activity", 8, "activity"), SeriesCount("power", 0, "energy")]
    _print(Diagnosis(None, [], None, None, "http://prometheus", series, [], []))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Prometheus at http://prometheus"
    assert lines[2].split() == ["GPU", "activity", "8"]
    assert lines[3].split() == ["power", "energy", "0"]
