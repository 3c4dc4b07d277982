"""Reads a cloud provider's invoice (CSV) and sums it by day and instance type.

Supported formats are FOCUS, the AWS Cost and Usage Report, the exports of Google Cloud and Azure, and any CSV file
whose columns the caller names. Lines are summed while they are read, because an invoice may have millions of them. Tax,
credits, commitment fees and charges for anything but GPU instances are summed separately.
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
MAX_CELL_CHARS = 1_000_000
FIRST_YEAR, LAST_YEAR = 1970, 9998  # of the days that a ledger can store
Line = Mapping[str, str]  # cells by lowercase column name

# Names of instance types with GPUs, for billed types that the ledger does not know.
GPU_INSTANCE = re.compile(
    r"\b((?:p[2-9]\w*|g[3-9]\w*|gr6\w*)\.\w+|(?:a2|a3|a4|a4x|g2|g4)-[a-z]+-?\w*|Standard_N[CDGV]\w+)", re.IGNORECASE
)


class BillError(ValueError):
    """An invoice that cannot be read. The message names the file, the line or column, and a remedy."""


class BilledUse(NamedTuple):
    """The cost of one instance type on one day. `hours` may be missing on the invoice."""

    usd: Decimal = Decimal(0)
    hours: Decimal | None = None
    committed_usd: Decimal = Decimal(0)  # the part covered by a commitment, at its effective cost


class Bill(NamedTuple):
    """The totals of an invoice."""

    form: str
    lines: int
    used: dict[tuple[date, str], BilledUse]
    apart: dict[str, Decimal]  # charges other than GPU usage, by kind


class _Form(NamedTuple):
    """The columns of an invoice format, in lowercase. Of several columns, the first one that is present counts."""

    name: str
    known_by: tuple[str, ...]
    day: tuple[str, ...]
    usd: Callable[[Line], str]
    type: tuple[str, ...]  # columns that contain the name of the instance type
    hours: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()  # of `hours`
    currency: tuple[str, ...] = ()
    kind: Callable[[Line], str] = lambda line: USAGE
    committed: Callable[[Line], bool] = lambda line: False


def days_of(path: Path, zone: tzinfo = UTC, columns: Mapping[str, str] | None = None) -> tuple[date, date]:
    """Returns the first and the last day of an invoice."""
    form: _Form | None = None
    days: set[date] = set()
    for number, line in enumerate(_lines(path), 1):
        form = form or _form(line, columns, path)
        if form.kind(line) == USAGE:
            days.add(_day(_first(line, form.day), zone, path, number))
    if not days:
        raise BillError(f"{path} has no usage lines.")
    return min(days), max(days)


def read_bill(
    path: Path, known_types: Iterable[str], zone: tzinfo = UTC, columns: Mapping[str, str] | None = None
) -> Bill:
    """Reads an invoice as CSV, gzipped or not."""
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
    """Finds the instance type of a line."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name.casefold(): name for name in known}
        longest_first = sorted(map(re.escape, self._known), key=len, reverse=True)
        self._named = re.compile(rf"(?<![\w.-])({'|'.join(longest_first)})(?![\w.-])") if longest_first else None

    def of(self, cells: list[str]) -> str | None:
        """Returns the instance type, or None if the line is not about a GPU instance."""
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
    """The billed cost. For usage covered by a commitment it is the effective cost, because its billed cost is zero."""
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
    if _aws_line(line) == "savingsplannegation":  # offsets the on-demand cost of covered usage
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
    _Form(  # cores, memory and GPUs have separate lines, so their hours are not instance hours
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
        chosen = {name: column.lower() for name, column in columns.items()}
        for column in chosen.values():
            if column not in line:
                raise BillError(f"{path} has no column {column!r}. It has {', '.join(line)[:300]}.")
        return _Form(
            "custom",
            (),
            (chosen["day"],),
            lambda line: line[chosen["usd"]],
            (chosen["type"],),
            (chosen["hours"],) if "hours" in chosen else (),
        )
    for form in _FORMS:
        if all(name in line for name in form.known_by):
            return form
    raise BillError(
        f"{path} is not in a known invoice format (FOCUS, AWS CUR, Google Cloud, Azure). Name its columns: "
        "--columns day=…,type=…,usd=…,hours=…"
    )


# -- cells ------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[Line]:
    csv.field_size_limit(MAX_CELL_CHARS)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            names = [name.strip().lower() for name in next(reader, [])]
            for cells in reader:
                if cells:  # missing cells of a short line are empty
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
    """Returns the day of a date or time in the time zone."""
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
        raise BillError(f"{path}, line {number + 1}: the amount is in {currency[:10]}, but the ledger is in USD.")


def columns_of(text: str) -> dict[str, str]:
    """Parses `day=…,type=…,usd=…,hours=…`."""
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if set(pairs) - {"day", "type", "usd", "hours"} or not {"day", "type", "usd"} <= set(pairs):
        raise BillError(
            f"--columns {text!r} is not valid. Use day=…,type=…,usd=… and, if the invoice states hours, hours=…."
        )
    return pairs
