"""Product names as drivers, gpu-feature-discovery and AMD's tools write them → the model that the table knows."""

from __future__ import annotations

import re
from itertools import product

import pytest

from pyrometer.identify.gpus.gpu_models import (
    NEAR_IDLE_FACTOR,
    NEAR_IDLE_UNKNOWN_W,
    gpu_model,
    gpu_models,
    near_idle_power_w,
)

NAMES = {
    "NVIDIA GB200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA-GH200-144G-HBM3e": "GH200",
    "NVIDIA B200": "B200",
    "NVIDIA-B300-SXM6-AC": "B300",
    "NVIDIA H200": "H200",
    "NVIDIA-H200": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIE",
    "NVIDIA-H100-PCIe": "H100-PCIE",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H800": "H800-SXM",
    "NVIDIA H800 PCIe": "H800-PCIE",
    "NVIDIA H20": "H20",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA-A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB",
    "A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIE-80GB",
    "NVIDIA-A100-80GB-PCIe": "A100-PCIE-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA A800-SXM4-80GB": "A800-SXM4-80GB",
    "NVIDIA A800 80GB PCIe": "A800-PCIE-80GB",
    "NVIDIA A40": "A40",
    "NVIDIA A30": "A30",
    "NVIDIA A10G": "A10G",
    "NVIDIA A10": "A10",
    "NVIDIA A2": "A2",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": "L40",
    "NVIDIA L20": "L20",
    "NVIDIA L4": "L4",
    "Tesla T4": "T4",
    "Tesla-T4": "T4",
    "NVIDIA T4G": "T4G",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla V100-SXM3-32GB": "V100-SXM3-32GB",
    "Tesla V100-PCIE-16GB": "V100-PCIE",
    "Tesla V100S-PCIE-32GB": "V100-PCIE",
    "Tesla P100-SXM2-16GB": "P100-SXM2",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla P40": "P40",
    "Tesla P4": "P4",
    "Tesla M60": "M60",
    "Tesla K80": "K80",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-ADA",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX-PRO-6000-MAXQ",
    "Quadro RTX 8000": "QUADRO-RTX-8000",
    "Quadro RTX 6000": "QUADRO-RTX-6000",
    "NVIDIA GeForce RTX 5090": "RTX-5090",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "NVIDIA-GeForce-RTX-4090": "RTX-4090",
    "NVIDIA GeForce RTX 4090 D": "RTX-4090-D",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
    "NVIDIA GeForce RTX 3090 Ti": "RTX-3090-TI",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI250X": "MI250X",
    "AMD Instinct MI210": "MI210",
}
# What gpu-feature-discovery adds to a product that is time-sliced or cut into MIG instances.
SUFFIXES = (
    "-SHARED",
    "-MIG-1g.10gb",
    "-MIG-1g.5gb",
    "-MIG-7g.80gb",
    "-MIG-1g.18gb-SHARED",
    "-MIG-1g.10gb.me",
    "-MIG-INVALID",
)
MIG_CAPABLE = (
    "NVIDIA-H200",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-A100-80GB-PCIe",
    "A100-SXM4-40GB",
)


@pytest.mark.parametrize("name", NAMES)
def test_gpu_model_knows_product_names(name):
    assert gpu_model(name).model == NAMES[name]


@pytest.mark.parametrize("name", NAMES)
def test_gpu_model_ignores_case_and_separators(name):
    for written in (name.upper(), name.lower(), name.replace(" ", "-"), name.replace(" ", "_")):
        assert gpu_model(written).model == NAMES[name]


@pytest.mark.parametrize(
    ("name", "suffix"), [*product(MIG_CAPABLE, SUFFIXES), ("Tesla-T4", "-SHARED"), ("NVIDIA L4", "-SHARED")]
)
def test_gpu_model_of_a_mig_instance_is_that_of_its_device(name, suffix):
    assert gpu_model(name + suffix).model == NAMES[name]


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA Graphics Device",
        "Contoso X1",
        "NVIDIA GeForce RTX 4090 Laptop GPU",  # not the board that the table describes
        "NVIDIA A1000",
        "NVIDIA T400",
        "NVIDIA L400",
        "NVIDIA H1000",
        "Tesla K8",
        "llvmpipe",
        "cpu:laptop:launch:0",
    ],
)
def test_gpu_model_of_an_unknown_name_is_none(name):
    assert gpu_model(name) is None


def test_every_model_of_the_table_is_found_by_its_name():
    """So that a price book may use the short names."""
    assert {known.model: found and found.model for known in gpu_models() for found in [gpu_model(known.model)]} == {
        known.model: known.model for known in gpu_models()
    }


def test_table_of_models_is_consistent():
    names = [known.model for known in gpu_models()]
    assert len(names) == len(set(names)) >= 25
    for known in gpu_models():
        assert 0 < known.held_idle_power_w < known.board_power_w
        assert near_idle_power_w(known.model) < known.board_power_w  # or every board would hang
        assert known.source
        if known.list_usd_micro_per_hour is not None:
            assert 100_000 <= known.list_usd_micro_per_hour <= 100_000_000
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", known.as_of)  # a price without its date is a rumour


def test_near_idle_power_is_slightly_above_idle_power():
    assert near_idle_power_w("NVIDIA H200") == round(125 * NEAR_IDLE_FACTOR) == 156
    assert near_idle_power_w("NVIDIA-L4-SHARED") == round(33 * NEAR_IDLE_FACTOR)
    assert near_idle_power_w("Contoso X1") == near_idle_power_w(None) == NEAR_IDLE_UNKNOWN_W


def test_peak_flops_are_dense_and_from_data_sheets():
    peaks = {known.model: known.peak_tflops_bf16 for known in gpu_models()}
    assert (peaks["H100-SXM"], peaks["A100-SXM4-80GB"], peaks["L4"]) == (989.5, 312, 121)  # half of "with sparsity"
    assert (peaks["T4"], peaks["V100-SXM2-16GB"]) == (None, None)  # they have no bfloat16
    for known in gpu_models():
        assert ("bf16: NVIDIA" in known.source) == (known.peak_tflops_bf16 is not None), known.model
