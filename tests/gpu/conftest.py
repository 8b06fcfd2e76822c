"""Runs Triton kernels on numpy arrays: on a GPU where there is one, in Triton's interpreter elsewhere."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.devices.gpu_api import Api
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Packed, Quantized, pack
from mixplan.runtime.two_level import row_scales


class Worker:
    """Kernels in a process of their own; see kernel_worker.py."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "kernel_worker.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, kernel: str, grid: tuple[int, ...], *arguments: Any, **options: Any) -> list[np.ndarray]:
        """Run `kernel` ("file" or "file:function"); the arrays among the arguments as they are afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = pickle.dumps((kernel, grid, list(arguments), options))
        self._process.stdin.write(len(data).to_bytes(8, "little") + data)
        self._process.stdin.flush()
        size = int.from_bytes(self._process.stdout.read(8), "little")
        answer = pickle.loads(self._process.stdout.read(size))
        if isinstance(answer, str):
            raise AssertionError(answer)
        return list(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(30)


@pytest.fixture(scope="session")
def kernel() -> Iterator[Worker]:
    """kernel(name, grid, *arguments, **compile_time): runs a kernel of targets/gpu/kernels and gives the arrays back."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("triton is not installed: pip install 'mixplan[gpu]'")
    worker = Worker()
    yield worker
    worker.close()


def make_weight(fmt: WeightFormat, rows: int, columns: int, rng: np.random.Generator) -> Packed:
    """A packed weight [rows, columns] of random codes and scales, about as large as a trained one's."""
    if not fmt.quantized:
        return pack(fmt, (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32))
    codes = rng.integers(0, fmt.levels, (rows, columns)).astype(np.uint8)
    if fmt.floating:  # no NaN
        codes[codes & 0x7F == 0x7F] -= 1
    groups = fmt.groups(columns)
    scales = ((rng.random((rows, groups)) + 0.5) / fmt.levels / np.sqrt(columns)).astype(np.float32)
    if fmt.two_level:
        row = row_scales(np.abs(scales).max(axis=1))
        scales = row[:, None] * rng.integers(-127, 128, scales.shape).astype(np.float32)
    zeros: np.ndarray | None = None
    if fmt.has_minimum:
        zeros = (rng.standard_normal((rows, groups)) / np.sqrt(columns)).astype(np.float16)
    elif not fmt.symmetric:
        zeros = rng.integers(0, fmt.levels, (rows, groups)).astype(np.uint8)
    return pack(fmt, Quantized(codes, scales, zeros))


@pytest.fixture(scope="session")
def weight() -> Callable[..., Packed]:
    """See make_weight."""
    return make_weight


def weight_arguments(fmt: WeightFormat, packed: Packed) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """(weight words, scales, zeros, codebook) as kernels take them, and the format's compile-time arguments."""
    book = CODEBOOKS[fmt.bits] if fmt.nonuniform and not fmt.floating else None
    words = np.ascontiguousarray(packed["weight"]).view(np.int32).reshape(-1)
    options = {
        "BITS": fmt.bits,
        "NONUNIFORM": fmt.nonuniform,
        "GROUP": fmt.group_size,
        "TWO_LEVEL": fmt.two_level,
        "MINIMUM": fmt.has_minimum,
    }
    return [words, packed.get("scales"), packed.get("zeros"), book], options


@pytest.fixture(scope="session")
def arguments() -> Callable[..., Any]:
    """See weight_arguments."""
    return weight_arguments


@pytest.fixture(scope="session")
def e4m3() -> np.ndarray:
    """What each e4m3 byte stands for, f32 [256], from the format's definition (OCP 8-bit floating point, revision 1.0)."""
    code = np.arange(256)
    sign, exponent, fraction = np.where(code >= 128, -1.0, 1.0), (code >> 3) & 15, code & 7
    values = sign * np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


FORMATS = {
    "f32": WeightFormat.of("f32"),
    "bf16": WeightFormat.of("bf16"),
    "i8": WeightFormat.of("i8"),
    "i8-asymmetric": WeightFormat.of("i8", symmetric=False),
    "i8-64": WeightFormat.of("i8", 64),
    "i6-32": WeightFormat.of("i6", 32),
    "i5-32-minimum": WeightFormat.of("i5", 32, symmetric=False, zero_dtype=DType.f16),
    "i4-32": WeightFormat.of("i4", 32),
    "i4-128-asymmetric": WeightFormat.of("i4", 128, symmetric=False),
    "i4-64-two-level": WeightFormat.of("i4", 64, scale_dtype=DType.i8),
    "i3-64-minimum": WeightFormat.of("i3", 64, symmetric=False, zero_dtype=DType.f16),
    "i2-32-asymmetric": WeightFormat.of("i2", 32, symmetric=False),
    "e4m3": WeightFormat.of("e4m3"),
    "e4m3-64": WeightFormat.of("e4m3", 64),
    "n5-32": WeightFormat.of("n5", 32),
    "n4-64-two-level": WeightFormat.of("n4", 64, scale_dtype=DType.i8),
    "n2-32": WeightFormat.of("n2", 32),
}
"""Formats that the kernels are tested with: every width, every kind of scale and zero."""


@pytest.fixture(scope="session")
def formats() -> dict[str, WeightFormat]:
    """See FORMATS."""
    return FORMATS


@pytest.fixture(scope="session")
def fake_driver() -> Any:
    """The module fake_driver.py, which stands beside this file and in no package."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("ziglang") is None:
        pytest.skip("triton, which has the headers of the drivers, or the compiler is not installed: pip install 'mixplan[gpu,compile]'")
    spec = importlib.util.spec_from_file_location("fake_driver", Path(__file__).with_name("fake_driver.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_gpu(fake_driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Api], Any]:
    """fake_gpu(api): a FakeDriver with nothing in it."""
    folder = tmp_path_factory.mktemp("driver")
    libraries: dict[str, Path] = {}

    def make(api: Api) -> Any:
        if api.title not in libraries:
            libraries[api.title] = fake_driver.build(api, folder)
        return fake_driver.FakeDriver(libraries[api.title], api)

    return make
