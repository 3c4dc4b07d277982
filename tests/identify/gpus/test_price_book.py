"""Price books: what is read, what is refused and how, and which price applies to which slot and day."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.identify.gpus.price_book import PriceError, read_entries, read_price_book
from pyrometer.identify.gpus.prices import applicable_prices
from pyrometer.model.records import Node, Price
from pyrometer.model.settings import Settings
from pyrometer.store import Store

H100 = "NVIDIA-H100-80GB-HBM3"
UNKNOWN = "Contoso X1"
LIST_H100 = 6_880_000


def prices_for(models, written):
    """The prices that apply to these models."""
    return [applying.price for applying in applicable_prices(models, written)]


def ms(*moment):
    return round(datetime(*moment, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def book(tmp_path):
    """Writes a price book; gives its path."""

    def write(text):
        path = tmp_path / "prices.yaml"
        path.write_text(text)
        return path

    return write


def error_of(path):
    with pytest.raises(PriceError) as caught:
        read_price_book(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert text.endswith(".")
    return text


# -- reading ----------------------------------------------------------------------------------------------------------


def test_price_book_reads_all_fields(book):
    path = book(
        """
        prices:
          - usd_per_gpu_hour: 2.10
            model: H100-SXM
            pool: reserved-a
            cluster: east
            purchase: reserved
            from: 2026-01-01
            until: 2027-01-01
          - usd_per_gpu_hour: 3
        """
    )
    start = ms(2026, 1, 1)
    assert read_price_book(path) == [
        Price(start, 2_100_000, start, ms(2027, 1, 1), "H100-SXM", "reserved-a", "east", "reserved"),
        Price(0, 3_000_000, 0),
    ]


@pytest.mark.parametrize(
    ("written", "usd_micro"),
    [("2.1", 2_100_000), ("0.000001", 1), ("0", 0), ("'2.10'", 2_100_000), ("1e1", 10_000_000), ("98.32", 98_320_000)],
)
def test_prices_are_read_exactly(book, written, usd_micro):
    (price,) = read_price_book(book(f"prices:\n- usd_per_gpu_hour: {written}"))
    assert price.usd_micro_per_hour == usd_micro


def test_empty_list_is_a_book_without_prices(book):
    assert read_price_book(book("prices: []")) == []


def test_price_from_accepts_a_time_of_day(book):
    (price,) = read_price_book(book("prices:\n- {usd_per_gpu_hour: 1, from: 2026-01-01T12:30:00+02:00}"))
    assert price.from_ms == ms(2026, 1, 1, 10, 30)
    (price,) = read_price_book(book("prices:\n- {usd_per_gpu_hour: 1, from: 2026-01-01 12:30:00}"))
    assert price.from_ms == ms(2026, 1, 1, 12, 30)


def test_numeric_name_is_read_as_text(book):
    (price,) = read_price_book(book("prices:\n- {usd_per_gpu_hour: 1, model: 4090, pool: 7}"))
    assert (price.gpu_model, price.pool) == ("4090", "7")
    assert prices_for(["NVIDIA GeForce RTX 4090"], [price]) == []


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("{usd_per_gpu_hour: 1, modell: H100}", "'modell'"),
        ("{usd_per_gpu_hour: -0.5}", "-0.5 is negative"),
        ("{usd_per_gpu_hour: cheap}", "'cheap' is not a number"),
        ("{usd_per_gpu_hour: }", "not a number"),
        ("{usd_per_gpu_hour: [1]}", "not a number"),
        ("{usd_per_gpu_hour: .nan}", "not a number"),
        ("{usd_per_gpu_hour: .inf}", "not a number"),
        ("{usd_per_gpu_hour: 1, from: someday}", "'someday' is not a date"),
        ("{usd_per_gpu_hour: 1, until: 2026}", "2026 is not a date"),
        ("{model: H100-SXM}", "has no `usd_per_gpu_hour`"),
        ("2.50", "has no `usd_per_gpu_hour`"),
        ("{usd_per_gpu_hour: $2.10}", "'$2.10' is not a number, without currency or unit"),
        ("{usd_per_gpu_hour: 2.10 EUR}", "'2.10 EUR' is not a number, without currency or unit"),
        ("{usd_per_gpu_hour: true}", "True is not a number"),
        ("{usd_per_gpu_hour: 1e999999999}", "is not a number"),
        ("{usd_per_gpu_hour: 2100000}", "2100000 is more than 1,000,000: it is in another unit"),
        ("{usd_per_node_hour: -1}", "usd_per_node_hour -1 is negative"),
        ("{usd_per_gpu_hour: 1, usd_per_node_hour: 8}", "has both `usd_per_gpu_hour` and `usd_per_node_hour`"),
        ("{usd_per_gpu_hour: 1, from: 2026-02-01, until: 2026-01-01}", "until 2026-01-01 is not after from 2026-02-01"),
        ("{usd_per_gpu_hour: 1, from: 2026-02-01, until: 2026-02-01}", "is not after from 2026-02-01"),
        ("{usd_per_gpu_hour: 1, purchase: cheap}", "purchase 'cheap' is not one of on_demand, spot, reserved"),
        ("{usd_per_gpu_hour: 1, pool: [a]}", "pool ['a'] is not a name"),
        ("{owned: 28000}", "owned 28000 is not a list of `name: value`"),
        ("{owned: {capital_usd_per_gpu: 1, watts: 5}}", "owned, has 'watts'"),
        ("{owned: {capital_usd_per_gpu: 1}}", "owned needs `lifetime_years`"),
        ("{owned: {lifetime_years: 4}}", "one of `capital_usd_per_gpu` and `capital_usd_per_node`"),
        ("{owned: {capital_usd_per_gpu: 1, lifetime_years: 0}}", "lifetime_years must be more than 0"),
        ("{owned: {capital_usd_per_gpu: 1, lifetime_years: 4, power_w: 700}}", "`power_w` and `usd_per_kwh` together"),
        ("{owned: {capital_usd_per_gpu: 1, lifetime_years: 4, pue: 0.9}}", "pue 0.9 is below 1"),
        ("{owned: {capital_usd_per_gpu: a lot, lifetime_years: 4}}", "capital_usd_per_gpu 'a lot' is not a number"),
    ],
)
def test_invalid_entry_is_named(book, entry, named):
    text = error_of(book(f"prices:\n- {{usd_per_gpu_hour: 1}}\n- {entry}"))
    assert "entry 2" in text
    assert named in text


def test_ambiguous_entries_are_both_named(book):
    text = error_of(
        book(
            """
            prices:
              - {usd_per_gpu_hour: 1, pool: a, model: H100-SXM}
              - {usd_per_gpu_hour: 2, pool: a, model: H100-SXM, from: 2026-01-01}
              - {usd_per_node_hour: 3, pool: a, model: NVIDIA-H100-80GB-HBM3, until: 2026-01-01}
            """
        )
    )
    assert "entries 1 and 3 are both for model NVIDIA-H100-80GB-HBM3, pool a from the same time on" in text
    assert "entries 1 and 2 are both for everything" in error_of(
        book("prices:\n- {usd_per_gpu_hour: 1}\n- {usd_per_gpu_hour: 1}")
    )


def test_too_long_book_is_rejected(book):
    assert "more than 4,000,000 bytes" in error_of(book("#" * 4_000_001))


def test_book_with_exponential_aliases_is_rejected_quickly(book):
    doubled = "\n".join(f"  - &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 60))
    assert "is not a name" in error_of(
        book(f"a:\n  - &x0 []\n{doubled}\nprices:\n- {{usd_per_gpu_hour: 1, pool: *x59}}")
    )


# -- nodes, and machines of one's own ---------------------------------------------------------------------------------

OWNED = """
prices:
  - pool: own
    owned: {capital_usd_per_node: 280000, lifetime_years: 4, power_w: 10200, pue: 1.3, usd_per_kwh: 0.12,
            fixed_usd_per_hour: 2.50}
  - model: H200
    instance_type: p5en.48xlarge
    purchase: on-demand
    usd_per_node_hour: 63.296
  - owned: {capital_usd_per_gpu: 28000, lifetime_years: 4.5}
"""


def test_owned_machine_costs_capital_power_and_fixed_costs(book):
    own, rented, bare = read_entries(book(OWNED))
    capital, power, fixed = 7_985_398, 1_591_200, 2_500_000  # 280,000 ÷ 35,064; 10.2 × 1.3 × 0.12
    assert own.price == Price(0, capital + power + fixed, 0, pool="own", per="node")
    assert own.arithmetic == (
        "$280,000 ÷ (4 years × 8,766 h) = $7.985398; 10,200 W × PUE 1.3 × $0.12/kWh = $1.591200; fixed $2.500000; "
        "together $12.076598 per node-hour"
    )
    assert rented.price == Price(
        0, 63_296_000, 0, gpu_model="H200", purchase="on_demand", instance_type="p5en.48xlarge", per="node"
    )
    assert rented.arithmetic is None
    assert bare.price == Price(0, 709_813, 0)
    assert bare.arithmetic == "$28,000 ÷ (4.5 years × 8,766 h) = $0.709813 per hour"


@pytest.mark.parametrize("text", ["", "prices:", "prices: 2.50", "price: []", "[]", "just words", "prices: {a: 1}"])
def test_book_without_a_list_is_rejected(book, text):
    assert "has no list `prices`" in error_of(book(text))


@pytest.mark.parametrize("text", ["prices: [", "prices:\n- {a: 1\n- b", "\tprices: 1", "a: b: c"])
def test_book_that_is_not_yaml_is_rejected_in_one_sentence(book, text):
    assert "cannot be read" in error_of(book(text))


def test_missing_book_is_named(tmp_path):
    assert "No such file" in error_of(tmp_path / "prices.yaml")
    assert "cannot be read" in error_of(tmp_path)


def test_binary_book_is_rejected(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_bytes(b"prices: \xff\xfe")
    assert "cannot be read" in error_of(path)


# -- which apply ------------------------------------------------------------------------------------------------------


# -- in the ledger ----------------------------------------------------------------------------------------------------

START = ms(2026, 3, 31, 22)
HOUR = 3_600_000


@pytest.fixture
def priced(tmp_path_factory):
    """The prices that one idle GPU has, hour by hour for four hours around midnight, and whether any is assumed."""

    def build_with(*prices, gpu_model=H100, **node):
        with Store(tmp_path_factory.mktemp("data"), create=True) as store:
            store.append(
                [Node(at_ms, "east", "n", "n", 1, gpu_model, **node) for at_ms in (START, START + 4 * HOUR - 1)]
            )
            build(store, Settings(), now_ms=START + 10 * HOUR, prices=prices)
            store.expose_all(["ledger_row"])
            rows = store.connection.execute(
                f"SELECT minute_ms // {HOUR} AS hour, usd_micro_per_hour, sum(ms) FROM ledger_row "
                "GROUP BY ALL ORDER BY hour"
            ).fetchall()
            assert [ms for *_, ms in rows] == [HOUR] * 4
            return [price for _, price, _ in rows], store.meta("prices_assumed") == "yes"

    return build_with


def test_list_price_is_assumed_without_a_book(priced):
    assert priced() == ([LIST_H100] * 4, True)


def test_time_without_any_price_is_unpriced(priced):
    assert priced(gpu_model=UNKNOWN) == ([None] * 4, False)


def test_book_price_replaces_the_list_price(priced):
    assert priced(Price(0, 2_000_000, 0, gpu_model="H100-SXM")) == ([2_000_000] * 4, False)
    # even where the list is more specific than the book
    assert priced(Price(0, 3_000_000, 0)) == ([3_000_000] * 4, False)


def test_price_with_the_most_selectors_applies(priced):
    anything = Price(0, 1_000_000, 0)
    model = Price(0, 2_000_000, 0, gpu_model=H100)
    pool = Price(0, 3_000_000, 0, gpu_model=H100, pool="a")
    assert priced(pool, anything, model, pool="a") == ([3_000_000] * 4, False)
    assert priced(pool, anything, model, pool="b") == ([2_000_000] * 4, False)
    assert priced(anything, pool) == ([1_000_000] * 4, False)


def test_list_price_applies_without_matching_selectors(priced):
    assert priced(Price(0, 1, 0, cluster="west")) == ([LIST_H100] * 4, True)
    assert priced(Price(0, 1, 0, purchase="spot"), purchase="reserved") == ([LIST_H100] * 4, True)
    assert priced(Price(0, 1, 0, cluster="east", purchase="spot"), purchase="spot") == ([1] * 4, False)


A_YEAR_AND_THE_NEXT = """
prices:
  - {usd_per_gpu_hour: 1, model: H100-SXM, until: 2026-04-01}
  - {usd_per_gpu_hour: 2, model: H100-SXM, from: 2026-04-01}
"""


def test_price_validity_includes_from_and_excludes_until(priced, book):
    """The hours are 22, 23, 0 and 1 o'clock: the new month begins in the middle."""
    assert priced(*read_price_book(book(A_YEAR_AND_THE_NEXT)))[0] == [1_000_000, 1_000_000, 2_000_000, 2_000_000]


def test_successive_prices_cover_all_time(priced, book):
    assert priced(*read_price_book(book(A_YEAR_AND_THE_NEXT)))[1] is False


def test_list_price_is_assumed_after_the_book_expires(priced, book):
    path = book("prices:\n- {usd_per_gpu_hour: 1, model: H100-SXM, until: 2026-04-01}")
    assert priced(*read_price_book(path)) == ([1_000_000, 1_000_000, LIST_H100, LIST_H100], True)
    path = book("prices:\n- {usd_per_gpu_hour: 1, model: H100-SXM, until: 2026-01-01}")
    assert priced(*read_price_book(path)) == ([LIST_H100] * 4, True)


def test_instance_type_selects_a_price(priced):
    typed = Price(0, 2_000_000, 0, instance_type="p5.48xlarge")
    assert priced(Price(0, 1_000_000, 0), typed, instance_type="p5.48xlarge") == ([2_000_000] * 4, False)
    assert priced(typed, instance_type="p5e.48xlarge") == ([LIST_H100] * 4, True)


def test_later_validity_then_later_entry_breaks_ties(priced):
    pool, cluster = Price(0, 1_000_000, 0, pool="a"), Price(0, 2_000_000, 0, cluster="east")
    assert priced(pool, cluster, pool="a") == ([2_000_000] * 4, False)
    assert priced(cluster, pool, pool="a") == ([1_000_000] * 4, False)
    later = pool._replace(from_ms=START + 2 * HOUR)
    assert priced(later, cluster, pool="a") == ([2_000_000, 2_000_000, 1_000_000, 1_000_000], False)


def test_newer_price_replaces_an_older_one(priced):
    older = Price(0, 1_000_000, 0, gpu_model=H100)
    newer = Price(0, 2_000_000, START + 2 * HOUR, gpu_model=H100)
    assert priced(older, newer) == ([1_000_000, 1_000_000, 2_000_000, 2_000_000], False)
