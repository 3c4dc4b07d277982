"""The rules of FOCUS 1.2 that can be checked by looking at a file: each as its specification says it, and as a question
to a row. A cell that is empty is null."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

Row = dict[str, str]

# The columns that a dataset must have, whoever makes it.
MANDATORY = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
)
_NEVER_NULL = (
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
)
_OF_USAGE = (  # and not of a correction
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "SkuId",
    "SkuPriceId",
)
_DECIMALS = (
    "BilledCost",
    "CommitmentDiscountQuantity",
    "ConsumedQuantity",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
)
_TIMES = ("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart")
_TOGETHER = (  # one is null exactly when the other is
    ("PricingQuantity", "PricingUnit"),
    ("ConsumedQuantity", "ConsumedUnit"),
    ("RegionId", "RegionName"),
    ("ResourceId", "ResourceType"),
    ("SubAccountId", "SubAccountType"),
    ("BillingAccountId", "BillingAccountType"),
    ("CommitmentDiscountId", "CommitmentDiscountCategory"),
    ("CommitmentDiscountId", "CommitmentDiscountType"),
)
_ALLOWED = {
    "ChargeCategory": ("Usage", "Purchase", "Tax", "Credit", "Adjustment"),
    "ChargeClass": ("Correction", ""),
    "ChargeFrequency": ("One-Time", "Recurring", "Usage-Based"),
    "PricingCategory": ("Standard", "Dynamic", "Committed", "Other", ""),
    "CommitmentDiscountStatus": ("Used", "Unused", ""),
    "ServiceSubcategory": (  # of the category Compute
        "Containers",
        "End User Computing",
        "Quantum Compute",
        "Serverless Compute",
        "Virtual Machines",
        "Other (Compute)",
    ),
}
TOLERANCE = Decimal("0.000001")  # costs are whole micro-dollars: they add up to the ledger's


def _is_usage(row: Row) -> bool:
    return row["ChargeCategory"] in ("Usage", "Purchase") and row["ChargeClass"] != "Correction"


def _product(row: Row, price: str, cost: str) -> bool:
    if not (row[price] and row["PricingQuantity"]) or row["ChargeClass"] == "Correction":
        return True
    return abs(Decimal(row[price]) * Decimal(row["PricingQuantity"]) - Decimal(row[cost])) <= TOLERANCE


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")  # raises for any other form


def _are_key_values(text: str) -> bool:
    tags = json.loads(text)
    return isinstance(tags, dict) and all(isinstance(value, str | int | float | bool) for value in tags.values())


RULES: dict[str, Callable[[Row], bool]] = {
    "mandatory columns are there": lambda row: set(MANDATORY) <= set(row),
    "column names are Pascal case, 50 characters at most": lambda row: all(
        re.fullmatch(r"(x_)?[A-Z][A-Za-z0-9]{0,49}", name) for name in row
    ),
    **{f"{name} MUST NOT be null": lambda row, name=name: bool(row[name]) for name in _NEVER_NULL},
    **{
        f"{name} MUST NOT be null when ChargeCategory is Usage or Purchase and ChargeClass is not Correction": (
            lambda row, name=name: bool(row[name]) or not _is_usage(row)
        )
        for name in _OF_USAGE
    },
    **{
        f"{name} MUST conform to NumericFormat": (
            lambda row, name=name: not row[name] or bool(re.fullmatch(r"-?\d+(\.\d+)?([Ee][+-]?\d+)?", row[name]))
        )
        for name in _DECIMALS
    },
    **{f"{name} MUST conform to DateTimeFormat": lambda row, name=name: bool(_time(row[name])) for name in _TIMES},
    **{f"{b} is null exactly when {a} is": lambda row, a=a, b=b: bool(row[a]) == bool(row[b]) for a, b in _TOGETHER},
    **{
        f"{name} MUST be one of the allowed values": lambda row, name=name, of=of: row[name] in of
        for name, of in _ALLOWED.items()
    },
    "BillingCurrency MUST be a currency code": lambda row: bool(re.fullmatch("[A-Z]{3}", row["BillingCurrency"])),
    "a period ends after it begins": lambda row: (
        _time(row["ChargePeriodStart"]) < _time(row["ChargePeriodEnd"])
        and _time(row["BillingPeriodStart"]) < _time(row["BillingPeriodEnd"])
    ),
    "a charge is in its billing period, unless it is a correction": lambda row: (
        row["ChargeClass"] == "Correction"
        or _time(row["BillingPeriodStart"])
        <= _time(row["ChargePeriodStart"])
        < _time(row["ChargePeriodEnd"])
        <= _time(row["BillingPeriodEnd"])
    ),
    "ChargeClass-C-003/004: a correction is of a period that was invoiced before": lambda row: (
        row["ChargeClass"] != "Correction" or _time(row["ChargePeriodEnd"]) <= _time(row["BillingPeriodStart"])
    ),
    "ListCost-C-009: ListUnitPrice × PricingQuantity MUST match ListCost": lambda row: _product(
        row, "ListUnitPrice", "ListCost"
    ),
    "ContractedUnitPrice × PricingQuantity MUST match ContractedCost": lambda row: _product(
        row, "ContractedUnitPrice", "ContractedCost"
    ),
    "unit prices MUST NOT be negative": lambda row: all(
        not row[name] or Decimal(row[name]) >= 0 for name in ("ListUnitPrice", "ContractedUnitPrice")
    ),
    "BilledCost-C-005: BilledCost MUST be 0 where another issues the invoice": lambda row: (
        row["ProviderName"] == row["InvoiceIssuerName"] or not Decimal(row["BilledCost"])
    ),
    "ChargeFrequency MUST NOT be Usage-Based when ChargeCategory is Purchase": lambda row: (
        row["ChargeCategory"] != "Purchase" or row["ChargeFrequency"] != "Usage-Based"
    ),
    "CommitmentDiscount… MUST be null when CommitmentDiscountId is": lambda row: (
        bool(row["CommitmentDiscountId"])
        or not any(value for name, value in row.items() if name.startswith("CommitmentDiscount"))
    ),
    "Tags MUST conform to KeyValueFormat": lambda row: not row["Tags"] or _are_key_values(row["Tags"]),
}


def count_violations(rows: list[Row]) -> dict[str, int]:
    """The number of rows that violate each rule."""
    found = {rule: sum(not holds(row) for row in rows) for rule, holds in RULES.items()}
    return {rule: count for rule, count in found.items() if count}
