"""The plan's record of a model: sizes, special tokens, sampling defaults."""

from __future__ import annotations

from typing import Any

from mixplan.runtime.errors import CheckpointError, RequestError
from mixplan.runtime.plan import Model
from mixplan.runtime.sampling import SamplingParams

__all__ = ["check_record", "context_length", "model_record"]

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


def model_record(config: Any, generation: dict[str, Any], parameters: int) -> Model:
    """The plan's Model record from a transformers config and the content of generation_config.json (may be empty)."""
    text = config.get_text_config()
    bos = _first(generation.get("bos_token_id"), getattr(text, "bos_token_id", None), getattr(config, "bos_token_id", None))
    eos = _first(generation.get("eos_token_id"), getattr(text, "eos_token_id", None), getattr(config, "eos_token_id", None))
    sampling = {name: float(generation[name]) for name in _SAMPLING if isinstance(generation.get(name), int | float)}
    if generation.get("do_sample") is False:
        sampling = {name: value for name, value in sampling.items() if name == "repetition_penalty"}
    return Model(
        architecture=str(config.model_type),
        vocab_size=int(text.vocab_size),
        context_length=context_length(text),
        parameters=parameters,
        bos_token_id=bos[0] if isinstance(bos, list) else bos,
        eos_token_ids=tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (int(eos),),
        generation=sampling,
    )


def check_record(record: Model, where: object) -> None:
    """CheckpointError where the config says what no plan can hold; `where` is the checkpoint."""
    most = 1 << 31
    if not 1 <= record.context_length < most:
        raise CheckpointError(
            f"{where}: the config allows {record.context_length} positions; it must be from 1 to 2^31 - 1.", hint="Correct config.json."
        )
    for token in (*record.eos_token_ids, *(() if record.bos_token_id is None else (record.bos_token_id,))):
        if type(token) is not int or not 0 <= token < most:
            raise CheckpointError(
                f"{where}: {token!r} is said to be the id of a first or last token; ids are from 0 to 2^31 - 1.",
                hint="Correct bos_token_id and eos_token_id in config.json and generation_config.json.",
            )
    try:
        SamplingParams.from_defaults(record.generation)
    except (RequestError, OverflowError) as error:
        raise CheckpointError(f"{where}: generation_config.json: {error}", hint="Correct that setting, or take it out.") from None


def context_length(text: Any) -> int:
    """The most positions that the config allows, by the names that configs use; 2048 where it names none."""
    for name in _LENGTHS:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 2048


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
