"""Static scales of activations, which the NPU target needs: whether there is a text to take them from, and which part of it."""

from __future__ import annotations

from mixplan.compiler.calibration.ranges import range_tokens
from mixplan.compiler.fitting import Fitting
from mixplan.compiler.frontends import Captured
from mixplan.compiler.options import Options
from mixplan.compiler.search.text import calibration_windows
from mixplan.compiler.units import NPU
from mixplan.runtime.errors import OptionError

__all__ = ["check_static", "range_windows"]


def check_static(options: Options, fitting: Fitting, *, searches: bool) -> None:
    """OptionError where the NPU target is asked for what it cannot do: rounded activations without a text, or a promise."""
    if NPU not in options.targets:
        return
    if searches:
        raise OptionError(
            "A promise is kept by measuring plans on the CPU target, so it cannot be given for the npu target.",
            hint="Search with --target cpu, and compile for the NPU with the schemes found, as --override.",
        )
    if options.rounds_activations and fitting.text is None:
        raise OptionError(
            f"{options.label} rounds activations to integers, and on the NPU their scales are static: there is no text to take them from.",
            hint="Give --text FILE: a text of the kind that the model is for. Or choose a scheme of A16.",
        )


def range_windows(captured: Captured, fitting: Fitting, options: Options) -> list[list[int]]:
    """Windows of token ids to take ranges on, spread over the text; none where nothing needs them."""
    if NPU not in options.targets or not options.rounds_activations or fitting.text is None:
        return []
    windows, _ = calibration_windows(captured, fitting.text)
    count = max(range_tokens(captured.model.parameters) // windows.shape[1], 1)
    chosen: list[list[int]] = windows[:: max(len(windows) // count, 1)].tolist()
    return chosen
