"""The hardware abstraction layer: what a device must offer to run a region, and what it is given.

A device is found by name (`devices/registry.py`), asked whether it can work on this machine, and loads regions of a verified plan. A loaded
region is called once a step. The runtime owns the page accounting of the KV cache (`kv_cache.py`); each device owns the storage behind the
pages, for the attention nodes that it hosts, in whatever layout suits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.logit_rows import LogitRows
from mixplan.runtime.plan_io import LoadedPlan
from mixplan.runtime.sampling import Draw

__all__ = [
    "MOST_STEPS",
    "PAGE_SIZE",
    "Array",
    "CacheSpec",
    "DecodingRegion",
    "Device",
    "DeviceFactory",
    "DeviceOptions",
    "Fault",
    "LoadedRegion",
    "ProfiledRegion",
    "ProviderRegion",
    "RegionDecoder",
    "Step",
    "Support",
    "TappableRegion",
]

Array: TypeAlias = NDArray[Any]

PAGE_SIZE = 32
"""Tokens per KV page. Fixed, so that kernels can be specialised on it."""

MOST_STEPS = 32
"""Steps of one token that a device is asked for at once, at most."""


class Support(msgspec.Struct, frozen=True):
    """Whether a device can work on this machine, and why (not)."""

    ok: bool
    reason: str = ""


class Fault(msgspec.Struct, frozen=True):
    """An implementation that a device tried for a region, in vain, before the one that it took: "the plan's x86-64-v3 kernels"; and why."""

    implementation: str
    reason: str


class DeviceOptions(msgspec.Struct, frozen=True):
    """What the caller of `load` asks of devices. None leaves the choice to the device."""

    threads: int | None = None
    isa: str | None = None
    profile: bool = False
    """Keep the time of every op, where the device can."""
    allow_cpu_fallback: bool = False
    """Let the CPU run what an NPU's provider does not, instead of failing."""


class CacheSpec(msgspec.Struct, frozen=True):
    """How much KV storage a device sets aside: `pages` pages of `page_size` tokens in each of its attention layers."""

    pages: int
    page_size: int
    max_sequences: int
    max_pages_per_sequence: int


class Step(msgspec.Struct, frozen=True):
    """One validated step of T tokens of any number of sequences, R of whose rows are wanted as logits.

    The tokens of one sequence stand together, in ascending, consecutive positions. Ids, positions, slots, rows and pages are all in range:
    a device need not check them again. Every page that the step's sequences need, up to their new lengths, is in `block_tables`.
    """

    token_ids: NDArray[np.int32]
    """[T], each in [0, vocab_size)."""
    positions: NDArray[np.int32]
    """[T], the token's place in its sequence."""
    sequences: NDArray[np.int32]
    """[T], the token's sequence slot in [0, max_sequences)."""
    logit_rows: NDArray[np.int32]
    """[R], indices into the step's tokens; R may be 0."""
    sequence_lengths: NDArray[np.int32]
    """[T], for each token 1 + the largest position of its sequence in this step."""
    block_tables: NDArray[np.int32]
    """[max_sequences, max_pages_per_sequence], the page that holds positions [32 i, 32 i + 32) of a slot, -1 where unused."""
    page_size: int = PAGE_SIZE

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def rows(self) -> int:
        """R."""
        return len(self.logit_rows)


class LoadedRegion(Protocol):
    """A region, ready to run on one device."""

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """Run once.

        `inputs` holds an array for each value index in `Region.inputs` (the step inputs among them, int64, in the shapes of the plan). The
        result holds one for each index in `Region.outputs`, C-contiguous, in the declared dtype, valid until the next run.
        """

    def close(self) -> None:
        """Release memory and threads. Further calls do nothing."""

    def metrics(self) -> dict[str, float]:
        """Counters of this region by name, units in the name (`kv_bytes`, `arena_bytes`)."""

    @property
    def isa(self) -> str:
        """The instruction set or architecture that it runs on, for the placement summary ("numpy" for the reference)."""

    # May also have `implementation` and `origin`, str: which of its device's ways it is, and where its code came from; and `faults`, a
    # tuple of Fault: what its device tried before.


class RegionDecoder(Protocol):
    """Makes steps of one token of each of some sequences, all of whose logits are wanted. What `Step` promises holds here too."""

    def run(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> LogitRows:
        """One step. Token i is at `positions[i]` of the sequence in slot `slots[i]`, which ends there."""

    def run_steps(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        draws: Sequence[Draw] | None,
        steps: int,
        stops: tuple[int, ...],
        seconds: float,
    ) -> tuple[list[int], LogitRows]:
        """Up to `steps` steps, each with the tokens found by the one before; every sequence has the pages for them.

        draws: one for each sequence, with a number for each step; None: each token is the most probable one. Gives the tokens found, step
        after step, and the logits of the last step. No step follows one that finds a token of `stops` or a row without a finite largest
        logit (-1), nor one after which another would end later than `seconds` from the start.
        """


@runtime_checkable
class DecodingRegion(Protocol):
    """A loaded region with a shorter way for decode steps, where it is the whole plan."""

    def decoder(self, tables: NDArray[np.int32]) -> RegionDecoder | None:
        """`tables` are the block tables, at a place that does not change. None: this region has no shorter way."""


@runtime_checkable
class ProfiledRegion(Protocol):
    """A loaded region that keeps the time of its ops."""

    def op_seconds(self) -> list[tuple[int, float]]:
        """(index into the plan's nodes, seconds since it was loaded) of each op that runs; nodes that need no op of their own are missing.

        Empty where no profile was asked for at load.
        """


@runtime_checkable
class ProviderRegion(Protocol):
    """A loaded region whose device hands parts of it to others."""

    def node_providers(self) -> dict[str, str]:
        """What runs each part, by the part's name."""


@runtime_checkable
class TappableRegion(Protocol):
    """A loaded region that can show the output of each of its nodes, and go on with others."""

    def run_tapped(self, step: Step, inputs: Mapping[int, Array], tap: Callable[[str, Array], Array | None]) -> dict[int, Array]:
        """As `run`, calling tap(value name, array) after each node, once per output. The array is only valid during the call.

        An array that `tap` gives takes the place of the output.
        """


class Device(Protocol):
    """The run half of a target.

    `load` raises UnsupportedError where this region cannot run here, CapacityError or MemoryError where the device has no room for it (the
    runtime then takes the next device, and reports why), PlanError where the plan is wrong. `LoadedRegion.run` may raise the second
    too; then the next device runs this step and all later ones, after the steps that make the keys and values that the region held.
    """

    @property
    def name(self) -> str:
        """The name by which plans and users ask for it."""

    def supported(self) -> Support:
        """Whether this machine has what the device needs."""

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """Prepare `plan.plan.regions[region_index]`, with KV storage for the attention nodes in it."""


DeviceFactory: TypeAlias = Callable[[DeviceOptions], Device]
"""What a `mixplan.devices` entry point resolves to: usually the device's class."""
