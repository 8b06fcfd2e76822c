"""Records and samples of AMD GPUs, from what the kernel's driver amdgpu tells in /sys: no library is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mixplan.runtime.hardware.measured import read_measured
from mixplan.runtime.hardware.pcie import link_rate
from mixplan.runtime.hardware.record import Hardware, Sample
from mixplan.runtime.system_text import number, read

__all__ = ["AmdGpu", "find_amd"]

_VENDOR = "0x1002"
_SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s of a lane, and the generation of PCI Express
_ADDRESS = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


def find_amd(root: Path = Path("/")) -> list[AmdGpu]:
    """The GPUs, in the order of their cards. root: where /sys is."""
    cards = [path for path in (root / "sys/class/drm").glob("card*") if path.name.removeprefix("card").isdigit()]
    ordered = sorted(cards, key=lambda path: int(path.name.removeprefix("card")))
    return [AmdGpu(root, card / "device") for card in ordered if read(card / "device/vendor") == _VENDOR]


@dataclass(frozen=True)
class AmdGpu:
    """`folder`: of the PCI device. What a file does not tell (other kernels, consumer cards, missing rights) is None."""

    root: Path
    folder: Path

    def record(self, index: int) -> Hardware:
        """The record, as GPU `index`. Compute units and architecture are in the topology of the compute driver, amdkfd."""
        node = self._topology()
        simds, each = node.get("simd_count", 0), node.get("simd_per_cu", 0)
        units = simds // each if each else None
        total = number(read(self.folder / "mem_info_vram_total"))
        speed = read(self.folder / "max_link_speed").partition(" ")[0]
        record = Hardware(
            device=f"gpu:{index}",
            model=read(self.folder / "product_name") or None,
            arch=_arch(node.get("gfx_target_version", 0)),
            cores=units,
            machine_cores=units,
            clock=_highest_clock(read(self.folder / "pp_dpm_sclk")),
            memory=total,
            memory_limit=total,
            link=link_rate(_SPEEDS.get(speed), number(read(self.folder / "max_link_width"))),
        )
        return read_measured(record)

    def source(self) -> Callable[[], Sample]:
        """What samples it."""
        return self._sample

    def _sample(self) -> Sample:
        total, used = (number(read(self.folder / f"mem_info_vram_{what}")) for what in ("total", "used"))
        power = self._sensor("power1_average")
        microwatts = power if power is not None else self._sensor("power1_input")
        millidegrees, hertz = self._sensor("temp1_input"), self._sensor("freq1_input")
        return Sample(
            free=None if total is None or used is None else max(total - used, 0),
            temperature=None if millidegrees is None else millidegrees / 1e3,
            power=None if microwatts is None else microwatts / 1e6,
            clock=None if hertz is None else float(hertz),
        )

    def _sensor(self, name: str) -> int | None:
        return next((found for path in sorted(self.folder.glob(f"hwmon/hwmon*/{name}")) if (found := number(read(path))) is not None), None)

    def _topology(self) -> dict[str, int]:
        """The properties of the node at this PCI address, empty where there is none."""
        address = _ADDRESS.fullmatch(self.folder.resolve().name)
        if address is None:
            return {}
        domain, bus, slot, function = (int(part, 16) for part in address.groups())
        for path in sorted((self.root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
            facts = dict(_facts(read(path)))
            here = facts.get("domain", 0), facts.get("location_id", -1)
            if facts.get("gfx_target_version") and here == (domain, bus << 8 | slot << 3 | function):
                return facts
        return {}


def _facts(text: str) -> list[tuple[str, int]]:
    pairs = (line.split() for line in text.splitlines())
    return [(pair[0], value) for pair in pairs if len(pair) == 2 and (value := number(pair[1])) is not None]


def _arch(version: int) -> str | None:
    """90402 is 9.4.2, which is gfx942: the last two digits are hexadecimal ones."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def _highest_clock(levels: str) -> float | None:
    """Of lines such as "1: 2100Mhz *"."""
    found = [int(one) for one in re.findall(r"^\d+: (\d+)Mhz", levels, re.M | re.I)]
    return max(found) * 1e6 if found else None
