"""`pyrometer prices`: the price of each GPU kind and its source, missing prices, a starter book, a changed book."""

from __future__ import annotations

import pytest

from pyrometer.identify.gpus.gpu_models import gpu_models
from pyrometer.identify.gpus.price_book import read_entries, read_price_book
from pyrometer.model.records import Node
from pyrometer.store import Store

START_MS = 1_794_600_000_000
HOUR_MS = 3_600_000

BOOK = """
prices:
  - usd_per_gpu_hour: 2
    model: H100-SXM
  - usd_per_node_hour: 10
    model: A100-SXM4-80GB
    instance_type: p4de.24xlarge
  - pool: own
    owned: {capital_usd_per_gpu: 17532, lifetime_years: 2, power_w: 1000, usd_per_kwh: 0.10}
  - usd_per_gpu_hour: 1
    pool: misspelt
"""


@pytest.fixture
def folder(tmp_path):
    """Nodes of several kinds for one hour."""
    data = tmp_path / "data"
    nodes = [
        ("a", 8, "NVIDIA-H100-80GB-HBM3", "east", {}),
        ("b", 3, "NVIDIA-A100-SXM4-80GB", None, {"instance_type": "p4de.24xlarge", "purchase": "spot"}),
        ("c", 4, "NVIDIA H100 80GB HBM3", "own", {}),
        ("d", 2, "NVIDIA-L4", None, {}),
        ("e", 1, "Contoso X1", None, {}),
    ]
    with Store(data, create=True) as store:
        store.append(
            Node(at_ms, "prod", uid, uid, count, model, pool, **more)
            for uid, count, model, pool, more in nodes
            for at_ms in (START_MS, START_MS + HOUR_MS - 1)
        )
    return data


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(BOOK)
    return path


def test_prices_has_the_price_and_its_source_per_gpu_kind(pyrometer, folder, book):
    answer = pyrometer("prices", "--data", folder, "--book", book, "-o", "json").json
    found = {
        row["gpu_model"]: (row["gpus"], row["usd_micro_per_hour"], row["source"], row["entry"])
        for row in answer["rows"]
    }
    assert found == {
        "NVIDIA-H100-80GB-HBM3": (8, 2_000_000, "book", 1),
        "NVIDIA-A100-SXM4-80GB": (3, 3_333_333, "book", 2),
        "NVIDIA H100 80GB HBM3": (4, 1_100_000, "book", 3),
        "NVIDIA-L4": (2, 804_800, "list", None),
        "Contoso X1": (1, None, None, None),
    }
    assert [row["gpus"] for row in answer["rows"]] == [8, 4, 3, 2, 1]
    assert (answer["gpus"], answer["assumed_gpus"], answer["unpriced_gpus"]) == (18, 2, 1)
    assert answer["unused_entries"] == [4]
    of = {row["gpu_model"]: row for row in answer["rows"]}
    assert of["NVIDIA-A100-SXM4-80GB"]["usd_micro_per_node_hour"] == 10_000_000
    assert of["NVIDIA-A100-SXM4-80GB"]["arithmetic"] == "$10.00 per node-hour ÷ 3 GPUs"
    assert of["NVIDIA H100 80GB HBM3"]["arithmetic"] == (
        "$17,532 ÷ (2 years × 8,766 h) = $1.000000; 1,000 W × PUE 1 × $0.1/kWh = $0.100000; "
        "together $1.100000 per GPU-hour"
    )


def test_prices_table_equals_the_json(pyrometer, folder, book):
    lines = pyrometer("prices", "--data", folder, "--book", book).lines
    assert "list (assumed)" in next(line for line in lines if line.startswith("NVIDIA-L4"))
    assert next(line for line in lines if line.startswith("Contoso X1")).endswith("–")
    assert "Entry 2: $10.00 per node-hour ÷ 3 GPUs." in lines
    assert "Entries of the book that apply to no GPU here now: 4 (of 4)." in lines
    assert "List prices are assumed for 2 GPUs. Put your prices into a price book." in lines
    assert lines[-1] == "1 GPU without a price: their time is unpriced."


def test_prices_without_a_folder_lists_and_checks_the_book(pyrometer, book):
    shown = pyrometer("prices", "-o", "json").json
    assert [row["model"] for row in shown["list"]] == [known.model for known in gpu_models()]
    assert shown["book"] == []
    text = pyrometer("prices", "--book", book).out
    assert "Entry 3: $17,532" in text
    assert "AWS p5.48xlarge" in text
    checked = pyrometer("prices", "--book", book, "-o", "json").json["book"]
    assert [entry["per"] for entry in checked] == ["gpu", "node", "gpu", "gpu"]
    book.write_text("prices:\n- {usd_per_gpu_hour: 1, modell: H100}")
    assert "entry 1 has 'modell'" in pyrometer("prices", "--book", book).failed(1)


def test_starter_is_a_valid_book_for_the_models_found(pyrometer, folder, tmp_path):
    text = pyrometer("prices", "--data", folder, "--starter").out
    path = tmp_path / "starter.yaml"
    path.write_text(text)
    assert {price.gpu_model: price.usd_micro_per_hour for price in read_price_book(path)} == {
        "H100-SXM": 6_880_000,
        "A100-SXM4-80GB": 3_430_900,
        "L4": 804_800,
    }
    assert '# - model: "Contoso X1"' in text  # what is not known stays unpriced, not free
    more = text.partition("# Other forms of entries:\n")[2]
    path.write_text("\n".join(["prices:", *(line.removeprefix("#") for line in more.splitlines())]))
    assert [entry.price.per for entry in read_entries(path)] == ["node", "node"]


def test_starter_without_known_models_is_a_valid_book(pyrometer, tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        store.append([Node(START_MS, "prod", "e", "e", 1, "Contoso X1")])
    path = tmp_path / "starter.yaml"
    path.write_text(pyrometer("prices", "--data", tmp_path / "data", "--starter").out)
    assert read_price_book(path) == []
    path.write_text(pyrometer("prices", "--starter").out)
    assert len(read_price_book(path)) == len([known for known in gpu_models() if known.list_usd_micro_per_hour])


def test_changed_price_book_restates_only_affected_time(pyrometer, folder, book):
    def costs():
        answer = pyrometer("cost", "--data", folder, "--all", "--by", "gpu_model", "-o", "json").json
        return {row["gpu_model"]: row["usd_micro"] for row in answer["rows"]}, answer["total"]["usd_micro"]

    def parts():
        with Store(folder) as store:
            return [part.path for part in store.parts("ledger_row")]

    (folder / "settings.yaml").write_text(f"price_book: {book}")
    rows, total = costs()
    assert (rows["NVIDIA-H100-80GB-HBM3"], rows["NVIDIA-A100-SXM4-80GB"]) == (16_000_000, 10_000_000)
    assert total == sum(usd for usd in rows.values() if usd is not None)
    before = parts()
    assert costs() == (rows, total)
    assert parts() == before
    book.write_text(BOOK.replace("usd_per_node_hour: 10", "usd_per_node_hour: 13"))
    changed, changed_total = costs()
    assert changed == rows | {"NVIDIA-A100-SXM4-80GB": 13_000_000}
    assert changed_total == total + 3_000_000
    assert parts() != before
    before = parts()
    book.write_text(book.read_text() + "  - {usd_per_gpu_hour: 9, from: 2030-01-01}\n")  # after the end of the data
    assert costs() == (changed, changed_total)
    assert parts() == before
