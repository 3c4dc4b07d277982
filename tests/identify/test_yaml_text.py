"""YAML that people write: what PyYAML stumbles over is one error as well."""

from __future__ import annotations

import pytest

from pyrometer.identify.yaml_text import YamlError, parsed

LAUGHS = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 12)
)


def test_parsed_reads_valid_yaml():
    assert parsed("a: &x {b: 0x10, c: 1_000}\nd: {<<: *x, b: 2}") == {
        "a": {"b": 16, "c": 1000},
        "d": {"b": 2, "c": 1000},
    }


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: 2026-13-45",
        "a: 2026-02-30T00:00:00Z",
        "a: !!int x",
        "a: !!int ''",
        "a: !!float x",
        "a: !!timestamp x",
        "a: !!bool x",
        "a: 0x_",
        "a: !!python/name:os.system",
        "a: " + "1" * 5_000,
        "a: 0x" + "f" * 5_000,
        "[" * 3_000,
        "a: *b",
        "{[]: 1}",
        "a: \x00",
        "? {}\n: 1",
        "!!set [a]",
        "!!omap {a: 1}",
        "!!pairs 1",
        "!!binary ÿ",
    ],
)
def test_parsed_rejects_invalid_yaml_in_one_line(text):
    with pytest.raises(YamlError) as caught:
        parsed(text)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_parsed_limits_merged_mappings():
    with pytest.raises(YamlError, match="entries"):
        parsed(LAUGHS)
