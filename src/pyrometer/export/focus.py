"""Charges as FOCUS 1.2, the FinOps Foundation's open billing format (focus.finops.org): one row per charge.

A cluster is the billing account, a team its sub-account, a node the resource, and a GPU model the SKU. GPU time without
a price has no row, because every row of this format must have a cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyrometer.export.csv import Cell, dollars
from pyrometer.export.parquet import MONEY, QUANTITY, TIME
from pyrometer.model.units import MS_PER_HOUR

PROVIDER = "Pyrometer"  # provider, publisher and invoice issuer: if they differ, the specification requires other costs
UNIT = "GPU-Hours"
CURRENCY = "USD"
ADJUSTS_TAG = "pyrometer:adjusts"  # the format requires a prefix for tags that the user did not define
QUANTITY_STEP = Decimal("1e-12")  # precision of quantities

# Columns with the same value in every row. None: the column does not apply to a self-operated cluster.
_CONSTANT_CELLS: dict[str, Cell] = {
    "AvailabilityZone": None,
    "BillingCurrency": CURRENCY,
    "BillingAccountType": "Cluster",
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "CommitmentDiscountCategory": None,
    "CommitmentDiscountId": None,
    "CommitmentDiscountName": None,
    "CommitmentDiscountQuantity": None,
    "CommitmentDiscountStatus": None,
    "CommitmentDiscountType": None,
    "CommitmentDiscountUnit": None,
    "ConsumedUnit": UNIT,
    "InvoiceId": None,
    "InvoiceIssuerName": PROVIDER,
    "PricingCategory": "Standard",
    "PricingUnit": UNIT,
    "ProviderName": PROVIDER,
    "PublisherName": PROVIDER,
    "RegionId": None,
    "RegionName": None,
    "ResourceType": "GPU node",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU cluster",
    "ServiceSubcategory": "Other (Compute)",
    "SkuMeter": "GPU time",
    "SkuPriceDetails": None,
    "SubAccountType": "Team",
}
_VARIABLE_COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
    "ResourceId",
    "ResourceName",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
)
COLUMNS = tuple(sorted((*_CONSTANT_CELLS, *_VARIABLE_COLUMNS)))
# The type of each column that is not text.
COLUMN_KINDS = {
    **dict.fromkeys(("BilledCost", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "ListCost"), MONEY),
    **dict.fromkeys(("CommitmentDiscountQuantity", "ConsumedQuantity", "PricingQuantity"), QUANTITY),
    **dict.fromkeys(("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"), TIME),
    "ListUnitPrice": MONEY,
}


def focus_table(answer: dict[str, Any]) -> Iterator[list[Cell]]:
    """The charges of an answer as a table, column names first."""
    yield list(COLUMNS)
    for row in answer["rows"]:
        charge = dict(zip(answer["columns"], row, strict=True))
        if charge["usd_micro"] is not None:
            cells = _CONSTANT_CELLS | _charge_cells(charge)
            yield [cells[name] for name in COLUMNS]


def _charge_cells(charge: dict[str, Any]) -> dict[str, Cell]:
    account, team, node = charge["cluster"] or "unknown", charge["team"] or "unknown", charge["node"] or "unknown"
    sku = charge["gpu_model"] or "GPU"
    cost, unit_price = dollars(charge["usd_micro"]), dollars(charge["usd_micro_per_hour"])
    quantity = (Decimal(charge["gpu_ms"]) / MS_PER_HOUR).quantize(QUANTITY_STEP)
    adjusts = charge["adjusts"]
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), unit_price),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), quantity),
        **dict.fromkeys(("BillingAccountId", "BillingAccountName"), account),
        **dict.fromkeys(("SubAccountId", "SubAccountName"), team),
        "BillingPeriodStart": charge["billing_from"],
        "BillingPeriodEnd": charge["billing_to"],
        "ChargePeriodStart": charge["from"],
        "ChargePeriodEnd": charge["to"],
        "ChargeClass": "Correction" if adjusts else None,
        "ChargeDescription": f"{f'Correction of {adjusts}: ' if adjusts else ''}GPU time of "
        f"{charge['experiment'] or 'no experiment'}, team {team}, on {node} ({sku})",
        "ResourceId": f"{account}/{node}",
        "ResourceName": node,
        "SkuId": sku,
        "SkuPriceId": f"{sku} at {unit_price:f}",
        "Tags": _tags(charge),
    }


def _tags(charge: dict[str, Any]) -> str:
    """The other fields of a charge, as a JSON object."""
    workload = charge["workload"] or {}
    tags = {
        "team": charge["team"],
        "experiment": charge["experiment"],
        "namespace": charge["namespace"],
        "pool": charge["pool"],
        "workload": workload.get("name"),
        "workload_kind": workload.get("kind"),
        "workload_uid": workload.get("uid"),
        ADJUSTS_TAG: charge["adjusts"],
    }
    return json.dumps({name: value for name, value in tags.items() if value is not None}, ensure_ascii=False)
