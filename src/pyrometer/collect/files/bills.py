"""A cloud provider's invoice as CSV, by day and instance type: FOCUS, AWS' cost and usage reports, the exports of
Google Cloud and Azure, or any other whose columns are named.

Lines are added up while they are read: an invoice may have millions. What is no use of an instance (tax, credits,
what commitments cost beforehand) is kept apart, and so is what is about no GPU instance.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

USAGE, TAX, CREDIT, FEE, OTHER = KINDS = ("usage", "tax", "credit", "commitment_fee", "other")
LONGEST_CELL = 1_000_000
FIRST_YEAR, LAST_YEAR = 1970, 9998  # that can be asked about
Line = Mapping[str, str]  # by the name of a column, in small letters

# Instances that have GPUs, by their names: what is billed and unknown to the ledger is looked for among them.
GPU_INSTANCE = re.compile(
    r"\b((?:p[2-9]\w*|g[3-9]\w*|gr6\w*)\.\w+|(?:a2|a3|a4|a4x|g2|g4)-[a-z]+-?\w*|Standard_N[CDGV]\w+)", re.IGNORECASE
)


class BillError(ValueError):
    """An invoice that cannot be read; the text names the file, the line or the column, and the way out."""


class BilledUse(NamedTuple):
    """What one instance type cost in a day; None of hours: the invoice does not say."""

    usd: Decimal = Decimal(0)
    hours: Decimal | None = None
    committed_usd: Decimal = Decimal(0)  # of it, what a commitment covered, at what that comes to


class Bill(NamedTuple):
    """An invoice, added up."""

    form: str
    lines: int
    used: dict[tuple[date, str], BilledUse]
    apart: dict[str, Decimal]  # by kind


class _Form(NamedTuple):
    """Where an invoice of some provider says what. Columns are in small letters; the first that is there counts."""

    name: str
    known_by: tuple[str, ...]
    day: tuple[str, ...]
    usd: Callable[[Line], str]
    type: tuple[str, ...]  # what names the instance type: by itself, or somewhere in it
    hours: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()  # of these
    currency: tuple[str, ...] = ()
    kind: Callable[[Line], str] = lambda line: USAGE
    committed: Callable[[Line], bool] = lambda line: False


def days_of(path: Path, zone: tzinfo = UTC, columns: Mapping[str, str] | None = None) -> tuple[date, date]:
    """The first and the last day of an invoice."""
    form: _Form | None = None
    days: set[date] = set()
    for number, line in enumerate(_lines(path), 1):
        form = form or _form(line, columns, path)
        if form.kind(line) == USAGE:
            days.add(_day(_first(line, form.day), zone, path, number))
    if not days:
        raise BillError(f"{path} has no lines that say what was used.")
    return min(days), max(days)


def read_bill(
    path: Path, known_types: Iterable[str], zone: tzinfo = UTC, columns: Mapping[str, str] | None = None
) -> Bill:
    """An invoice as CSV, gzipped or not."""
    types = _Types(known_types)
    used: dict[tuple[date, str], BilledUse] = {}
    apart = dict.fromkeys(KINDS[1:], Decimal(0))
    number = 0
    form: _Form | None = None
    for number, line in enumerate(_lines(path), 1):
        form = form or _form(line, columns, path)
        usd = _number(form.usd(line), path, number)
        _refuse_other_money(form, line, path, number)
        kind = form.kind(line)
        instance = types.of([line.get(name, "") for name in form.type]) if kind == USAGE else None
        if instance is None:
            apart[OTHER if kind == USAGE else kind] += usd
            continue
        key = (_day(_first(line, form.day), zone, path, number), instance)
        used[key] = _added(used.get(key, BilledUse()), form, line, usd, path, number)
    if form is None:
        raise BillError(f"{path} has no lines.")
    return Bill(form.name, number, used, apart)


def _added(known: BilledUse, form: _Form, line: Line, usd: Decimal, path: Path, number: int) -> BilledUse:
    unit = _first(line, form.unit).lower()
    hours = known.hours
    if form.hours and (not form.unit or unit.startswith(("hr", "hour", "1 hour", "1hour"))):
        hours = (hours or Decimal(0)) + _number(_first(line, form.hours), path, number)
    committed = known.committed_usd + (usd if form.committed(line) else 0)
    return BilledUse(known.usd + usd, hours, committed)


class _Types:
    """Finds the instance type that a line is about."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name.casefold(): name for name in known}
        longest_first = sorted(map(re.escape, self._known), key=len, reverse=True)
        self._named = re.compile(rf"(?<![\w.-])({'|'.join(longest_first)})(?![\w.-])") if longest_first else None

    def of(self, cells: list[str]) -> str | None:
        """The type; None for what is about no GPU instance."""
        for cell in cells:
            text = cell.casefold()
            if text in self._known:
                return self._known[text]
            if self._named is not None and (found := self._named.search(text)):
                return self._known[found[1]]
        for cell in cells:
            if found := GPU_INSTANCE.search(cell):
                return found[1]
        return None


# -- providers --------------------------------------------------------------------------------------------------------


def _first(line: Line, names: Iterable[str]) -> str:
    return next((line[name] for name in names if line.get(name)), "")


def _focus_kind(line: Line) -> str:
    category = line.get("chargecategory", "").lower()
    if category == "purchase" and line.get("commitmentdiscountid"):
        return FEE
    return {"tax": TAX, "credit": CREDIT, "usage": USAGE, "purchase": USAGE}.get(category, OTHER)


def _is_covered(line: Line) -> bool:
    return bool(line.get("commitmentdiscountid"))


def _focus_usd(line: Line) -> str:
    """What was billed; of what a commitment covers, its part of that: nothing is billed for it by itself."""
    return line.get("effectivecost" if _is_covered(line) else "billedcost") or line.get("billedcost", "")


_AWS_KIND = {
    "usage": USAGE,
    "discountedusage": USAGE,
    "savingsplancoveredusage": USAGE,
    "tax": TAX,
    "credit": CREDIT,
    "refund": CREDIT,
    "rifee": FEE,
    "fee": FEE,
    "savingsplanrecurringfee": FEE,
    "savingsplanupfrontfee": FEE,
    "edpdiscount": CREDIT,
    "privateratediscount": CREDIT,
    "bundleddiscount": CREDIT,
}
_AWS_COVERED = {
    "discountedusage": ("reservation/effectivecost", "reservation_effective_cost"),
    "savingsplancoveredusage": ("savingsplan/savingsplaneffectivecost", "savings_plan_savings_plan_effective_cost"),
}


def _aws_line(line: Line) -> str:
    return _first(line, ("lineitem/lineitemtype", "line_item_line_item_type")).lower()


def _aws_usd(line: Line) -> str:
    covered = _AWS_COVERED.get(_aws_line(line), ())
    if _aws_line(line) == "savingsplannegation":  # takes back what covered usage would have cost
        return "0"
    return _first(line, (*covered, "lineitem/unblendedcost", "line_item_unblended_cost"))


_FORMS = (
    _Form(
        "FOCUS",
        ("billedcost", "chargeperiodstart", "chargecategory"),
        ("chargeperiodstart",),
        _focus_usd,
        ("x_instancetype", "x_skuinstancetype", "skupricedetails", "skumeter", "chargedescription", "skuid"),
        ("consumedquantity", "pricingquantity"),
        ("consumedunit", "pricingunit"),
        ("billingcurrency",),
        _focus_kind,
        _is_covered,
    ),
    _Form(
        "AWS CUR",
        ("lineitem/usagestartdate",),
        ("lineitem/usagestartdate",),
        _aws_usd,
        ("product/instancetype", "lineitem/usagetype", "lineitem/lineitemdescription"),
        ("lineitem/usageamount",),
        ("pricing/unit",),
        ("lineitem/currencycode",),
        lambda line: _AWS_KIND.get(_aws_line(line), OTHER),
        lambda line: _aws_line(line) in _AWS_COVERED,
    ),
    _Form(
        "AWS CUR 2.0",
        ("line_item_usage_start_date",),
        ("line_item_usage_start_date",),
        _aws_usd,
        ("product_instance_type", "line_item_usage_type", "line_item_line_item_description"),
        ("line_item_usage_amount",),
        ("pricing_unit",),
        ("line_item_currency_code",),
        lambda line: _AWS_KIND.get(_aws_line(line), OTHER),
        lambda line: _aws_line(line) in _AWS_COVERED,
    ),
    _Form(  # cores, memory and GPUs are lines of their own: their hours are not those of an instance
        "Google Cloud",
        ("sku.description", "cost"),
        ("usage_start_time",),
        lambda line: line["cost"],
        ("system_labels", "resource.name", "sku.description"),
        (),
        (),
        ("currency",),
        lambda line: (
            TAX if line.get("cost_type") == "tax" else USAGE if line.get("cost_type", "regular") == "regular" else OTHER
        ),
    ),
    _Form(
        "Azure",
        ("metersubcategory", "quantity"),
        ("date", "usagedatetime"),
        lambda line: _first(line, ("costinbillingcurrency", "pretaxcost", "cost")),
        ("additionalinfo", "metersubcategory"),
        ("quantity",),
        ("unitofmeasure",),
        ("billingcurrency", "billingcurrencycode", "currency"),
        lambda line: {"tax": TAX, "refund": CREDIT, "purchase": FEE}.get(line.get("chargetype", "").lower(), USAGE),
        lambda line: line.get("pricingmodel", "").lower() in ("reservation", "savingsplan"),
    ),
)


def _form(line: Line, columns: Mapping[str, str] | None, path: Path) -> _Form:
    if columns:
        said = {name: column.lower() for name, column in columns.items()}
        for column in said.values():
            if column not in line:
                raise BillError(f"{path} has no column {column!r}. It has {', '.join(line)[:300]}.")
        return _Form(
            "as said",
            (),
            (said["day"],),
            lambda line: line[said["usd"]],
            (said["type"],),
            (said["hours"],) if "hours" in said else (),
        )
    for form in _FORMS:
        if all(name in line for name in form.known_by):
            return form
    raise BillError(
        f"{path} is no invoice that is known: FOCUS, AWS CUR, Google Cloud or Azure. Say which columns hold what: "
        "--columns day=…,type=…,usd=…,hours=…"
    )


# -- cells ------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[Line]:
    csv.field_size_limit(LONGEST_CELL)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            names = [name.strip().lower() for name in next(reader, [])]
            for cells in reader:
                if cells:  # a line that breaks off says nothing in what is missing
                    yield dict.fromkeys(names, "") | dict(zip(names, cells, strict=False))
    except (OSError, UnicodeDecodeError, EOFError, csv.Error, zlib.error) as error:
        raise BillError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}.") from None


def _number(text: str, path: Path, number: int) -> Decimal:
    try:
        found = Decimal(text.replace(",", "").lstrip("$") or "0")
    except InvalidOperation:
        found = Decimal("nan")
    if not found.is_finite() or found.adjusted() > 15:
        raise BillError(f"{path}, line {number + 1}: {text[:40]!r} is not an amount.")
    return found


def _day(text: str, zone: tzinfo, path: Path, number: int) -> date:
    """The day that a time lies in, in the zone; a day by itself is itself."""
    try:
        day = _read_day(text, zone)
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise ValueError
    except (ValueError, OverflowError):
        raise BillError(f"{path}, line {number + 1}: {text[:40]!r} is not a day.") from None
    return day


def _read_day(text: str, zone: tzinfo) -> date:
    if found := re.fullmatch(r"(\d{1,2})/(\d{1,2})/(\d{4})", text):  # Azure: month first
        return date(int(found[3]), int(found[1]), int(found[2]))
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text.replace(" UTC", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(zone).date()


def _refuse_other_money(form: _Form, line: Line, path: Path, number: int) -> None:
    currency = _first(line, form.currency)
    if currency and currency.upper() != "USD":
        raise BillError(f"{path}, line {number + 1}: it is in {currency[:10]}, and the ledger is in USD.")


def columns_of(text: str) -> dict[str, str]:
    """`day=…,type=…,usd=…,hours=…` as what it says."""
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if set(pairs) - {"day", "type", "usd", "hours"} or not {"day", "type", "usd"} <= set(pairs):
        raise BillError(f"--columns {text!r} is not known: day=…,type=…,usd=…, and hours=… where it is said.")
    return pairs
