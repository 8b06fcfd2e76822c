"""What a compile with a named scheme fits to a text: `--quantizer`, `--scaling`, and the text itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mixplan.compiler.calibration.collect import collect
from mixplan.compiler.calibration.statistics import Calibration, InputStatistics
from mixplan.compiler.clock import Clock
from mixplan.compiler.frontends import Captured
from mixplan.compiler.importance import input_moments
from mixplan.compiler.options import Options
from mixplan.compiler.scaling import SCALINGS
from mixplan.compiler.search.text import TextSource, calibration_windows
from mixplan.runtime.errors import MixplanError, OptionError
from mixplan.runtime.short_memory import short_memory

__all__ = ["QUANTIZERS", "Fitted", "Fitting", "check_text", "fit", "parse_fitting"]

QUANTIZERS = ("round", "clip", "gptq")
"""Each weight to its nearest code; scales by what columns count for; and errors made good by later columns."""

SCALED = "smooth"
"""What is done with a text, if nothing is said."""

_TEXT = "Give --text FILE: a text of the kind that the model is for."


@dataclass(frozen=True)
class Fitting:
    """quantizer: one of QUANTIZERS; asked: whether it was named, and is no default. scaling: one of SCALINGS."""

    quantizer: str
    asked: bool
    scaling: str
    text: TextSource | None

    @property
    def facts(self) -> dict[str, str]:
        """For the plan's provenance: what is not as it would be without these options."""
        facts = {"quantizer": self.quantizer if self.asked or self.text is not None else "", "scaling": self.scaling.replace("none", "")}
        return {name: value for name, value in facts.items() if value}


@dataclass(frozen=True)
class Fitted:
    """weights: what is known of the inputs of weights while these are rounded. scaling: what their scaling is chosen by."""

    weights: Mapping[str, Tensor | InputStatistics] = field(default_factory=dict)
    scaling: Mapping[str, InputStatistics] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def parse_fitting(quantizer: str | None, scaling: str | None, text: TextSource | None) -> Fitting:
    """OptionError for names that are not known, and for what needs a text and has none."""
    for name, value, allowed in (("quantizer", quantizer, QUANTIZERS), ("scaling", scaling, SCALINGS)):
        if value is not None and value not in allowed:
            raise OptionError(f"{name} is {value!r}; allowed are {', '.join(allowed)}.")
    check_text("text", text)
    if text is None:
        if quantizer == "gptq":
            raise OptionError("quantizer gptq needs a text: from too few tokens it does harm.", hint=_TEXT)
        if scaling not in (None, "none"):
            raise OptionError(f"scaling {scaling} is chosen by what a text makes of the layers' inputs, and there is none.", hint=_TEXT)
    if scaling is None:
        scaling = "none" if text is None else SCALED
    return Fitting(quantizer or ("clip" if text is None else "gptq"), quantizer is not None, scaling, text)


def check_text(name: str, source: TextSource | None) -> None:
    """OptionError for a path of no file."""
    if isinstance(source, str | Path) and not Path(source).expanduser().is_file():
        raise OptionError(f"{name} {source} is not a file.")


def fit(captured: Captured, fitting: Fitting, options: Options, clock: Clock, notes: list[str]) -> Fitted:
    """Run the graph as captured over the text, or over the package's own; `captured.graph` is left as it is.

    Nothing is run where it could serve nothing: without a text, for 8 bits and more.
    """
    if fitting.text is None:
        wanted = options.few_bits and fitting.quantizer != "round"
        return Fitted(clock.run("calibrate", lambda: _moments(captured, notes)) if wanted else {})
    if not options.quantizes:
        return Fitted()
    windows, digest = calibration_windows(captured, fitting.text)
    calibration: Calibration = clock.run(
        "calibrate", lambda: collect(captured, windows.tolist(), progress=lambda done: clock.tell("calibrate", done))
    )
    facts = {"text": digest, "calibration": f"{windows.shape[0]} windows of {windows.shape[1]} tokens"}
    scaling = None if fitting.scaling == "none" else calibration.inputs
    if fitting.quantizer == "gptq":
        return Fitted(calibration.inputs, scaling, facts)
    if fitting.quantizer == "round":
        return Fitted({}, scaling, facts)
    # Layers that read one value go on sharing one record.
    bare = {id(known): known.without_hessians() for known in calibration.inputs.values()}
    return Fitted({name: bare[id(known)] for name, known in calibration.inputs.items()}, scaling, facts)


def _moments(captured: Captured, notes: list[str]) -> dict[str, Tensor]:
    """How much the columns of each weight matter; where the graph cannot be run for it, nothing and a note."""
    try:
        return input_moments(captured)
    except MixplanError:
        raise
    except Exception as error:
        if short_memory(error):
            raise
        # Whatever torch cannot run here only costs some accuracy.
        notes.append(f"Weights were rounded without calibration, since the graph could not be run: {error}")
        return {}
