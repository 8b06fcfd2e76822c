"""Packages that bring targets and devices, sound and broken: found by their metadata, each failing alone and by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.devices.registry import create_device, device_names
from mixplan.runtime.errors import OptionError, PluginError, UnsupportedError
from mixplan.runtime.hal import DeviceOptions
from mixplan.runtime.plugins import installed
from mixplan.targets.base import Target
from mixplan.targets.cpu.target import CpuTarget
from mixplan.targets.registry import get_target, target_names

SOUND = """
from mixplan.targets.null.target import NullTarget
from mixplan.runtime.devices.null import NullDevice
class Twin(NullTarget):
    name = "{name}"
class TwinDevice(NullDevice):
    name = "{name}"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(package, module's text, target or device names and values): as pip leaves it."""
    monkeypatch.syspath_prepend(tmp_path)

    def forget() -> None:
        installed.cache_clear()
        get_target.cache_clear()
        for name in [name for name in sys.modules if name.startswith("plug_")]:
            del sys.modules[name]

    def put(package: str, text: str, *, targets: dict[str, str] | None = None, devices: dict[str, str] | None = None) -> None:
        (tmp_path / f"{package.replace('-', '_')}.py").write_text(text)
        info = tmp_path / f"{package.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        groups = {"mixplan.targets": targets or {}, "mixplan.devices": devices or {}}
        lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()) for group, found in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        forget()

    yield put
    forget()


def test_a_sound_package_beside_broken_ones(install: Install) -> None:
    install("plug-good", SOUND.format(name="good"), targets={"good": "plug_good:Twin"}, devices={"good": "plug_good:TwinDevice"})
    install("plug-bad", "import no_such_library", targets={"bad": "plug_bad:Target"}, devices={"bad": "plug_bad:Device"})
    assert {"good", "bad"} <= set(target_names()) & set(device_names())
    assert isinstance(get_target("good"), Target)
    assert create_device("good", DeviceOptions()).supported().ok
    assert isinstance(get_target("cpu"), CpuTarget)


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("import no_such_library", "plug_x:T", "importing plug_x failed: ModuleNotFoundError: No module named 'no_such_library'"),
        ("syntax error here", "plug_x:T", "importing plug_x failed: SyntaxError"),
        ("raise RuntimeError('no driver')", "plug_x:T", "importing plug_x failed: RuntimeError: no driver"),
        ("", "plug_y:T", "importing plug_y failed: ModuleNotFoundError"),
        ("", "plug_x:T", "plug_x has no 'T'"),
        ("T = 5", "plug_x:T", "must name a class or a function"),
        ("", "plug_x", "must name a class or a function"),
        ("def T(*a): raise OSError('no chip')", "plug_x:T", "failed: OSError: no chip"),
        ("class T:\n name = 'x'\n def __init__(self, *a): pass", "plug_x:T", "T lacks "),
        (SOUND.format(name="y"), "plug_x:Twin", "it calls itself 'y'"),
    ],
)
def test_errors_name_the_package_and_what_to_do(install: Install, text: str, value: str, said: str) -> None:
    install("plug-x", text, targets={"x": value}, devices={"x": value.replace("Twin", "TwinDevice")})
    for what, ask in (("target", lambda: get_target("x")), ("device", lambda: create_device("x", DeviceOptions()))):
        with pytest.raises(PluginError) as caught:
            ask()
        assert caught.value.message.startswith(f"The {what} 'x' of the package plug-x 1.2 (plug_")
        assert said in caught.value.message
        assert "pip uninstall plug-x" in str(caught.value.hint) or "entry point" in str(caught.value.hint)
        assert caught.value.exit_code == 2


def test_a_missing_member_is_named(install: Install) -> None:
    install("plug-x", "class T:\n name = 'x'\n def supports(self): ...", targets={"x": "plug_x:T"})
    with pytest.raises(PluginError, match=r"T lacks capabilities, resolve_levels, compile; a target has name, capabilities"):
        get_target("x")


def test_two_packages_of_one_name_concern_nobody_else(install: Install) -> None:
    install("plug-a", SOUND.format(name="twin"), targets={"twin": "plug_a:Twin"})
    install("plug-b", SOUND.format(name="twin"), targets={"twin": "plug_b:Twin"})
    with pytest.raises(PluginError, match=r"plug-a 1.2, plug-b 1.2 all claim this name"):
        get_target("twin")
    with pytest.raises(OptionError, match=r"there is no target 'tpu'.\nTargets here: cpu, .*twin"):
        get_target("tpu")
    assert isinstance(get_target("cpu"), CpuTarget)


def test_a_builtin_name_stays_the_builtin_one(install: Install) -> None:
    install("plug-a", SOUND.format(name="cpu"), targets={"cpu": "plug_a:Twin"}, devices={"cpu": "plug_a:TwinDevice"})
    assert isinstance(get_target("cpu"), CpuTarget)
    assert isinstance(create_device("cpu", DeviceOptions()), CpuDevice)
    assert target_names().count("cpu") == 1
    done = CliRunner().invoke(main, ["targets"])
    assert done.exit_code == 0
    assert "The target 'cpu' of the package plug-a 1.2 is not used: the built-in one has that name." in done.output


def test_the_list_shows_the_broken_ones(install: Install) -> None:
    install("plug-a", "raise ValueError('odd')", targets={"odd": "plug_a:T"})
    install("plug-b", "class T:\n name = 'mad'\n capabilities = resolve_levels = supports = compile = None", targets={"mad": "plug_b:T"})
    done = CliRunner().invoke(main, ["targets"], terminal_width=400)
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "odd no no" in words and "mad no no" in words and "reference yes yes" in words


def test_a_device_alone_is_listed_and_an_unknown_one_is_not(install: Install) -> None:
    install("plug-a", SOUND.format(name="lone"), devices={"lone": "plug_a:TwinDevice"})
    assert "lone" in device_names() and "lone" not in target_names()
    with pytest.raises(UnsupportedError, match=r"There is no device 'far'; there are cpu, reference, null.*lone"):
        create_device("far", DeviceOptions())
