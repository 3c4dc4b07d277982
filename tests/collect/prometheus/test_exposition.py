"""The metrics text, compared with the official parsers for generated texts and real scrapes."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from pyrometer.collect.prometheus.exposition import MAX_LINE_CHARS, ExpositionReader, ScrapeError

LINE = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",modelName="NVIDIA L4"} 16.365'


def reader(**options):
    """A reader that keeps names and labels as they are."""
    return ExpositionReader(str, dict, **options)


def in_one_form(samples):
    """Samples that can be compared: NaN is NaN."""
    return [(name, labels, repr(float(value)), time_ms) for name, labels, value, time_ms in samples]


def official(parse, text):
    return in_one_form(
        (s.name, s.labels, s.value, None if s.timestamp is None else round(float(s.timestamp) * 1000))
        for family in parse(text)
        for s in family.samples
    )


def read_twice(text, one=None):
    """What is read when everything is new, and again when it is known."""
    one = one or reader()
    first, second = one.read(text.encode()), one.read(text.encode())
    assert in_one_form(first.samples) == in_one_form(second.samples)
    assert first[1:] == second[1:]
    return second


# -- laws -------------------------------------------------------------------------------------------------------------

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,6}", fullmatch=True)
awkward = st.sampled_from(['"', "\\", "\n", "} ", "{", "# ", ",", "=", " ", "é", "\t", "\r", "} 5", ' # {a="b"} 1'])
label_values = st.lists(awkward | st.characters(codec="utf-8"), max_size=5).map("".join)
numbers = st.one_of(
    st.integers(-(2**63), 2**63).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "0.000000", "9223372036854775794"]),
)
times_ms = st.integers(1_000_000_000_000, 2_000_000_000_000)


def escaped(value):
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def blocks(draw):
    """A label block as some exporter might write it."""
    labels = draw(st.dictionaries(label_names, label_values, max_size=3))
    if not labels:
        return draw(st.sampled_from(["", "{}"]))
    comma, equals, end = draw(st.sampled_from([(",", "=", ""), (", ", "=", ""), (",", "=", ","), (" , ", " = ", " ")]))
    return "{" + comma.join(f'{name}{equals}"{escaped(value)}"' for name, value in labels.items()) + end + "}"


@st.composite
def lines(draw):
    kind = draw(st.sampled_from(["sample"] * 6 + ["comment", "blank"]))
    if kind == "comment":
        return draw(st.sampled_from(["# HELP a {b} } 5", "# a comment", "#", "  # TYPE x gauge"]))
    if kind == "blank":
        return draw(st.sampled_from(["", " "]))
    space = draw(st.sampled_from([" ", " ", " ", "  ", "\t"]))
    time = f"{space}{draw(times_ms)}" if draw(st.booleans()) else ""
    block = draw(blocks())
    return f"{draw(names)}{block}{space}{draw(numbers)}{time}"


texts = st.lists(lines(), min_size=1, max_size=8).map(lambda several: [*several, LINE])


@given(texts, st.sampled_from(["\n", "\r\n"]))
def test_exposition_reader_equals_official_parser(several, newline):
    text = newline.join(several) + newline
    parsed = read_twice(text)
    # the official one remembers types, and renames counters
    assert in_one_form(parsed.samples) == official(prometheus, "".join(f"{line}\n" for line in several))
    assert parsed[1:] == (0, 0)


@given(texts, st.data())
def test_exposition_reader_keeps_complete_lines(several, data):
    text = "".join(f"{line}\n" for line in (LINE, *several)).encode()
    cut = data.draw(st.integers(len(LINE) + 1, len(text)))
    whole, _, rest = text[:cut].rpartition(b"\n")
    parsed = reader().read(text[:cut])
    assert in_one_form(parsed.samples) == in_one_form(reader().read(whole + b"\n").samples)
    assert parsed.unfinished == int(bool(rest.decode(errors="replace").strip()) and not rest.strip().startswith(b"#"))


@st.composite
def openmetrics_texts(draw):
    """Counters with times in seconds and exemplars."""
    written = []
    for name in draw(st.lists(names.filter(lambda n: not n.endswith("_total")), min_size=1, max_size=3, unique=True)):
        written.append(f"# TYPE {name} counter")
        value, time_ms = draw(st.integers(0, 10**9)), draw(times_ms)
        label = escaped(draw(label_values))
        time = draw(st.sampled_from(["", f" {time_ms // 1000}.{time_ms % 1000:03d}"]))
        exemplar = draw(st.sampled_from(["", ' # {trace="a } # b"} 0.67', " # {} 1 1520879607.789"]))
        written.append(f'{name}_total{{a="{label}"}} {value}{time}{exemplar}')
    return "\n".join([*written, "# EOF"]) + draw(st.sampled_from(["", "\n"]))


@given(openmetrics_texts())
def test_exposition_reader_reads_openmetrics(text):
    assert in_one_form(read_twice(text).samples) == official(openmetrics, text.rstrip("\n") + "\n")


@given(st.binary(max_size=200))
def test_any_text_is_read_or_rejected(noise):
    for text in (noise, noise + b"\n", f"{LINE}\n".encode() + noise + b"\n"):
        with suppress(ScrapeError):
            assert reader().read(text).samples


@given(st.lists(st.sampled_from(list('abc{}="\\,# \t1.e+\r')), max_size=40).map("".join))
def test_any_metrics_like_text_is_read_or_counted(noise):
    parsed = reader().read(f"{LINE}\n{noise}\n".encode())
    assert parsed.samples[0][2] == 16.365
    assert len(parsed.samples) + parsed.unreadable <= 2


# -- real ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["l4", "l40s", "t4"])
def test_real_scrapes_equal_official_parser(real_data, name):
    text = (real_data / "dcgm" / f"{name}.prom").read_text()
    samples = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    parsed = read_twice(text)
    assert in_one_form(parsed.samples) == official(prometheus, samples)
    assert len(parsed.samples) == len(samples.splitlines())


# -- examples ---------------------------------------------------------------------------------------------------------


def test_incomplete_last_line_is_skipped():
    parsed = reader().read(f"{LINE}\nDCGM_FI_DEV_GPU_UTIL 9".encode())  # of 93, perhaps
    assert [sample[0] for sample in parsed.samples] == ["DCGM_FI_DEV_POWER_USAGE"]
    assert parsed.unfinished == 1


def test_invalid_line_does_not_affect_others():
    parsed = read_twice(f'{LINE}\nDCGM_FI_DEV_GPU_UTIL{{gpu="0" 5\nx 1_000\nDCGM_FI_DEV_POWER_USAGE5\n{LINE}\n')
    assert [value for _, _, value, _ in parsed.samples] == [16.365, 16.365]
    assert parsed.unreadable == 3


def test_overlong_line_is_not_read():
    long = 'a{b="' + "c" * MAX_LINE_CHARS + '"} 1'
    assert read_twice(f"{LINE}\n{long}\n").unreadable == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>\n", "a web page"),
        (b"\n <html>\n", "a web page"),
        (b"\x1f\x8b\x08\x00\xff\xfe\n", "binary"),
        (b"\x89PNG\r\n\x1a\n", "binary"),
        (b"", "has no metrics"),
        (b"# HELP nothing follows\n\n", "has no metrics"),
        (b'{"error": "not found"}\n', "None of its 1 lines"),
    ],
)
def test_other_text_is_rejected_with_one_sentence(text, message):
    with pytest.raises(ScrapeError, match=message):
        reader().read(text)


def test_unused_names_and_labels_are_skipped():
    one = ExpositionReader({"wanted": 1}.get, lambda labels: labels.get("gpu"))
    for _ in range(2):
        assert one.read(b'wanted{gpu="7"} 1\nother{gpu="7"} 2\nwanted{cpu="1"} 3\nwanted 4\n').samples == [
            (1, "7", 1.0, None)
        ]


def test_labels_are_interpreted_once():
    interpreted = []
    one = ExpositionReader(str, lambda labels: interpreted.append(labels) or labels)
    for value in range(3):
        parsed = one.read(f'a{{gpu="0"}} {value}\nb{{gpu="0"}} {value}\n'.encode())
        assert [sample[2] for sample in parsed.samples] == [value, value]
    assert interpreted == [{"gpu": "0"}] * 2  # with each name once


def test_caches_are_bounded():
    one = reader(max_cached=10)
    for begin in range(0, 100, 5):
        text = "".join(f'a{{pod="p{begin + n}"}} {n}\n' for n in range(5))
        assert len(one.read(text.encode()).samples) == 5
        assert len(one._blocks) <= 15


def test_nan_and_infinities_are_values():
    values = [value for _, _, value, _ in read_twice("a NaN\nb +Inf\nc -Inf\n").samples]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_binary_line_does_not_affect_others():
    good = LINE.encode()
    text = b"\n".join([good, good.replace(b"L4", b"L\xff"), b"\xfe\x00", good.replace(b"16", b"\xff"), good, b""])
    kept = reader()
    for _ in range(2):
        parsed = kept.read(text)
        assert [value for _, _, value, _ in parsed.samples] == [16.365, 16.365]
        assert parsed.unreadable == 3
