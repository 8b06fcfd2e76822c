"""Which ISA level goes first: bf16 dot products are slow on Intel's cores, where AMX or f32 arithmetic is better."""

from __future__ import annotations

import pytest

from mixplan.runtime.devices.cpu_info import _by_speed

AMX, BF16, VNNI, V3 = "x86-64-v4-amx", "x86-64-v4-bf16", "x86-64-v4-vnni", "x86-64-v3"


@pytest.mark.parametrize(
    ("vendor", "names", "expected"),
    [
        ("AuthenticAMD", [BF16, VNNI, V3], [BF16, VNNI, V3]),
        ("GenuineIntel", [BF16, VNNI, V3], [VNNI, BF16, V3]),
        ("GenuineIntel", [AMX, BF16, VNNI, V3], [AMX, VNNI, BF16, V3]),
        ("GenuineIntel", [VNNI, V3], [VNNI, V3]),
        ("", [BF16, VNNI, V3], [BF16, VNNI, V3]),
    ],
)
def test_bf16_without_amx_goes_behind_vnni_on_intel(vendor: str, names: list[str], expected: list[str]) -> None:
    assert _by_speed(names, vendor) == expected
