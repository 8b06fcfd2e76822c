"""A profile as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["render_profile"]


def render_profile(profile: Mapping[str, Any], table: Callable[..., Any]) -> list[Any]:
    """One table for each grouping, and what is outside of native code."""
    parts: list[Any] = [_headline(profile)]
    for grouping in ("kernel", "layer", "region"):
        rows = profile[f"by_{grouping}"]
        if grouping == "region" and len(rows) < 2:
            continue
        columns = ("ops:r", "ms:r", "time:r", "MB:r", "GB/s:r", "GOP:r", "GOP/s:r", "ceiling:r")
        made = table("", grouping, *columns)
        for row in rows:
            made.add_row(row["name"], str(row["ops"]), *_cells(row, f"{row['share'] * 100:.1f}%"))
        parts.append(made)
    return parts


def _cells(row: Mapping[str, Any], share: str) -> tuple[str, ...]:
    rates = [row.get("bytes_per_second"), row.get("ops_per_second")]
    gigabytes, gigaops = ("" if rate is None else f"{rate / 1e9:.1f}" for rate in rates)
    return (
        f"{row['seconds'] * 1e3:.3f}",
        share,
        f"{row['bytes'] / 1e6:.2f}",
        gigabytes,
        f"{row['operations'] / 1e9:.3f}",
        gigaops,
        _ceiling(row),
    )


def _ceiling(row: Mapping[str, Any]) -> str:
    share = row.get("share_of_ceiling")
    return "" if share is None else f"{share * 100:.0f}%"


def _headline(profile: Mapping[str, Any]) -> str:
    loop = profile.get("loop")
    lines = [f"\nProfile: {profile['name']} ({profile['repetitions']} repetitions)"]
    if loop is not None:
        lines.append(_line("generation loop, each token", loop, 1))
    lines.append(_line("Model.step", profile, profile["tokens"]))
    if "limit_seconds" in profile:
        cost, peaks = profile["cost"], profile["ceilings"]["peaks"]
        memory = cost["weight_bytes"] + cost["kv_bytes"]
        rates = ", ".join(f"{kind} {rate / 1e9:,.0f} GOP/s" for kind, rate in peaks.items() if rate)
        lines.append(
            f"limit {profile['limit_seconds'] * 1e3:.3f} ms: {memory / 1e6:,.1f} MB of weights and KV cache at "
            f"{(profile['limit_bandwidth'] or 0) / 1e9:.1f} GB/s; {rates}"
        )
    return "\n".join(lines)


def _line(name: str, figures: Mapping[str, Any], tokens: int) -> str:
    seconds, outside = figures["seconds"], figures["overhead_seconds"]
    reached = f", {figures['share_of_ceiling'] * 100:.0f}% of the limit" if figures.get("share_of_ceiling") else ""
    return (
        f"{name}: {seconds * 1e3:.3f} ms, {tokens / seconds:,.0f} tokens/s{reached}; "
        f"outside of native code {outside * 1e6:,.0f} us ({outside / seconds * 100:.1f}%)"
    )
