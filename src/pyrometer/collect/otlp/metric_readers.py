"""Metrics of training processes, and samples of GPUs from any sender.

Gauges with dcgm-exporter's names, and those of OpenTelemetry's conventions for hardware (`hw.gpu.*`), are samples of
GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from pyrometer.collect.gpu.dcgm import measure_of, slot_address_of
from pyrometer.collect.gpu.device import SlotAddress
from pyrometer.collect.otlp.forms import (
    Attributes,
    attributes_of,
    int_of,
    own_attributes,
    points_of,
    resource_attributes,
    value_of_point,
)
from pyrometer.collect.otlp.messages import (
    WRONG_TIME,
    Message,
    MetricMessage,
    RankIdentity,
    RejectedMessageError,
    parser_of,
)
from pyrometer.collect.otlp.readers import FOREIGN, MAX_ATTRIBUTE_CHARS, OtlpBody, SignalReader
from pyrometer.store.batches import OLDEST_MS

NO_VALUE, NO_DEVICE = "no value", "no device"  # reasons by which skipped points are counted
# Metrics of OpenTelemetry's conventions: dcgm-exporter's name, and the factor to its unit.
_HARDWARE = {
    "hw.gpu.utilization": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "hw.gpu.memory.usage": ("DCGM_FI_DEV_FB_USED_BYTES", 1.0),
    "hw.power": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "hw.energy": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1.0),
    "hw.temperature": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
}
_GPU_PREFIX = "hw.gpu."  # other metrics may be about any hardware, which an attribute names
_DEVICE_NUMBER = re.compile(r"(?:gpu|nvidia|cuda)[ :_#-]{0,2}(\d{1,4})\b", re.IGNORECASE)  # in a display name


class MetricReader(SignalReader):
    """Reads gauges and sums: values that a program reports, and samples of GPUs. Each point is read on its own."""

    def __init__(self, found: OtlpBody, newest_ms: int) -> None:
        super().__init__(found, newest_ms)
        self._addresses: dict[frozenset[tuple[str, Any]], SlotAddress | None] = {}

    def about(self, resource: Attributes | msgspec.Raw) -> Attributes:
        """All attributes of a resource: they may name a device."""
        return resource_attributes(resource) if isinstance(resource, msgspec.Raw) else resource

    def of(self, record: Any, resource: Attributes, who: RankIdentity | None, refused: str | None) -> Iterator[Message]:
        """The values of a metric that a program reports; samples of GPUs are collected instead."""
        points = points_of(record)
        named, factor = _HARDWARE.get(record.name.lower(), (record.name.upper(), 1.0))
        measure = measure_of(named)  # names of instruments are the same in any case
        if factor != 1.0 or named != record.name.upper():
            points = [point for point in points if self._is_of_gpu(record.name.lower(), resource, point)]
        if measure is None and refused is not None:
            self.found.refused[refused] += len(points)
        elif measure is None and who is None:
            self.found.left_out[FOREIGN] += len(points)
        else:
            for point in points:
                try:
                    if measure is not None:
                        self._sample(measure, factor, resource, point)
                    elif (value := self._value(record.name, point)) is not None:
                        yield value
                except RejectedMessageError as error:
                    self.found.refused[str(error)] += 1

    def _value(self, name: str, point: Any) -> MetricMessage | None:
        number = value_of_point(point)
        if number is None:
            self.found.left_out[NO_VALUE] += 1
            return None
        values = own_attributes(point)
        value = _value({**values, "time_ms": int_of(point.time_unix_nano) // 1_000_000, "name": name, "value": number})
        if value.time_ms > self.newest_ms:
            raise RejectedMessageError(WRONG_TIME)
        return value

    def _is_of_gpu(self, name: str, resource: Attributes, point: Any) -> bool:
        """Whether a point of the conventions' metrics is about a whole GPU. Other points are skipped."""
        about = resource | attributes_of(point)
        whole = about.get("hw.gpu.task", "general") == "general"
        if whole and (name.startswith(_GPU_PREFIX) or about.get("hw.type") == "gpu"):
            return True
        self.found.left_out[FOREIGN] += 1
        return False

    def _sample(self, measure: int, factor: float, resource: Attributes, point: Any) -> None:
        number, time_ms = value_of_point(point), int_of(point.time_unix_nano) // 1_000_000
        address = self._address(resource, attributes_of(point))
        if address is None:
            self.found.left_out[NO_DEVICE] += 1
        elif number is None or number != number:
            self.found.left_out[NO_VALUE] += 1
        else:
            if not OLDEST_MS <= time_ms <= self.newest_ms:
                raise RejectedMessageError(WRONG_TIME)
            self.found.samples.append((measure, address, number * factor, time_ms))

    def _address(self, resource: Attributes, labels: Attributes) -> SlotAddress | None:
        """The device that attributes name. All metrics of a device share one address."""
        host = resource.get("k8s.node.name") or resource.get("host.name")
        labels = _hardware(resource | labels) | {
            name: value for name, value in labels.items() if isinstance(value, str) and len(value) < MAX_ATTRIBUTE_CHARS
        }
        if isinstance(host, str):
            labels.setdefault("Hostname", host)
        key = frozenset(labels.items())
        if key not in self._addresses:
            self._addresses[key] = slot_address_of(labels)
        return self._addresses[key]


_value = parser_of(MetricMessage)


def _hardware(about: Attributes) -> dict[str, str]:
    """The conventions' attributes of a device as labels of dcgm-exporter."""
    known, name = about.get("hw.id"), about.get("hw.name")
    found: dict[str, str] = {}
    if isinstance(known, str) and known.startswith("GPU-"):
        found["UUID"] = known
    number = _DEVICE_NUMBER.search(name) if isinstance(name, str) and len(name) < MAX_ATTRIBUTE_CHARS else None
    if isinstance(known, str) and known.isdecimal():
        found["gpu"] = known
    elif number is not None:
        found["gpu"] = number[1]
    if isinstance(about.get("hw.model"), str):
        found["modelName"] = about["hw.model"]
    return found
