"""The tokenizer that a GGUF file describes, as a `tokenizers` tokenizer.

The file holds a vocabulary, token types, and merges (byte-level BPE, `tokenizer.ggml.model` = gpt2) or scores (sentencepiece BPE, = llama).
What it holds by name only, the pre-tokenizer, comes from `pretokenizers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mixplan.compiler.tokenizer.assets import TextAssets
from mixplan.compiler.tokenizer.chat_probe import chat_files
from mixplan.compiler.tokenizer.compact import compact_tokenizer
from mixplan.compiler.tokenizer.pretokenizers import pre_tokenizer
from mixplan.compiler.weights.gguf_file import GgufFile
from mixplan.runtime.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["build_tokenizer", "gguf_text_assets"]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"
# Tokens that end a turn of a chat. A file names one end token only; a chat model that ends its turn with another one must stop there too.
_TURN_ENDS = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "_<EOT>", "<end_of_utterance>", "<|return|>")
)


def gguf_text_assets(file: GgufFile) -> TextAssets:
    """Tokenizer, chat template and end tokens of an opened GGUF file. A file without a vocabulary gives no files."""
    tokens = file.strings("tokenizer.ggml.tokens")
    eos = _eos_ids(file, tokens)
    if not tokens:
        return TextAssets(eos_token_ids=eos, notes=("the GGUF file has no vocabulary, so the plan takes token ids only",))
    files = {"tokenizer.json": compact_tokenizer(build_tokenizer(file).to_str(pretty=False).encode("utf-8"))}
    notes: tuple[str, ...] = ()
    template = file.string("tokenizer.chat_template")
    if template:
        special = {
            name: tokens[index]
            for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))
            if (index := file.integer(f"tokenizer.ggml.{key}_token_id")) is not None and 0 <= index < len(tokens)
        }
        chat, notes = chat_files(template, special)
        files.update(chat)
    return TextAssets(files=files, bos_token_id=_token_id(file, "bos", tokens), eos_token_ids=eos, notes=notes)


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer, with special tokens, and with the post-processor that adds BOS and EOS where the model wants them."""
    model = file.string("tokenizer.ggml.model")
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens.", hint=_DOWNLOAD)
    if model == "gpt2":
        pre = pre_tokenizer(file.string("tokenizer.ggml.pre") or "default")
        tokenizer = _byte_level(file, tokens, pre.patterns, pre.ignore_merges)
        add_bos = pre.add_bos
    elif model == "llama":
        tokenizer = _sentencepiece(file, tokens, types)
        add_bos = True
    else:
        raise UnsupportedError(
            f"{file.path}: its tokenizer (tokenizer.ggml.model) is {model!r}; mixplan builds 'gpt2' (byte-level BPE) and 'llama' "
            "(sentencepiece BPE).",
            hint="Compile the model's Hugging Face directory instead: it holds the whole tokenizer.",
        )
    _add_special(tokenizer, file, tokens, types, model)
    _add_ends(tokenizer, file, tokens, add_bos)
    return tokenizer


_DOWNLOAD = "The file is damaged or was written wrong: download or convert it again."


def _byte_level(file: GgufFile, tokens: Sequence[str], patterns: Sequence[str], ignore_merges: bool) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = _vocabulary(file, tokens)
    merges = []
    for line in file.strings("tokenizer.ggml.merges"):
        # The first part is never empty, and may itself be a blank.
        at = line.find(" ", 1)
        if at < 0:
            raise CheckpointError(f"{file.path}: the merge {line!r} is not two tokens with a blank between them.", hint=_DOWNLOAD)
        left, right = line[:at], line[at + 1 :]
        # Checked here, since the library crashes on such a merge.
        for piece in (left, right, left + right):
            if piece not in vocab:
                raise CheckpointError(
                    f"{file.path}: the merge {line!r} needs the token {piece!r}, which is not in the vocabulary.", hint=_DOWNLOAD
                )
        merges.append((left, right))
    tokenizer = Tokenizer(_bpe(file, models.BPE, vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.floats("tokenizer.ggml.scores")
    architecture = file.architecture
    vocab = _vocabulary(file, tokens)
    if architecture.startswith("gemma"):
        # Gemma's merges follow the order of its vocabulary, not the scores in the file.
        ranks = [-float(i) for i in range(len(tokens))]
    elif len(scores) == len(tokens):
        ranks = scores
    else:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens.", hint=_DOWNLOAD)
    unknown = file.integer("tokenizer.ggml.unknown_token_id")
    unk = tokens[unknown] if unknown is not None and 0 <= unknown < len(tokens) else None
    merges = _merges(tokens, types, ranks, vocab)
    tokenizer = Tokenizer(_bpe(file, models.BPE, vocab=vocab, merges=merges, unk_token=unk, fuse_unk=True, byte_fallback=True))
    prefix = file.boolean("tokenizer.ggml.add_space_prefix")
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    tail: list[Any] = []
    if prefix or prefix is None:
        steps.insert(0, normalizers.Prepend(_SPACE))
        tail.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    return tokenizer


def _merges(tokens: Sequence[str], types: Sequence[int], ranks: Sequence[float], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way in which two tokens make a third, the best third first: sentencepiece merges the pair whose result scores highest."""
    found: list[tuple[float, int, int, int, str, str]] = []
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (1, _USER_DEFINED):
            for at in range(1, len(token)):
                left, right = token[:at], token[at:]
                if (l_id := vocab.get(left)) is not None and (r_id := vocab.get(right)) is not None:
                    found.append((-ranks[index], index, l_id, r_id, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _vocabulary(file: GgufFile, tokens: Sequence[str]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if vocab.setdefault(token, index) != index:
            raise CheckpointError(
                f"{file.path}: the token {token!r} stands in the vocabulary twice, as {vocab[token]} and {index}.", hint=_DOWNLOAD
            )
    return vocab


def _bpe(file: GgufFile, make: Any, **arguments: Any) -> Any:
    """The model; what the library refuses (a merge of tokens that are not in the vocabulary) is the file's fault."""
    try:
        return make(**arguments)
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{file.path}: its vocabulary and merges make no BPE tokenizer: {error}.", hint=_DOWNLOAD) from error


def _add_special(tokenizer: Tokenizer, file: GgufFile, tokens: Sequence[str], types: Sequence[int], model: str) -> None:
    """Control tokens are special; user-defined ones are matched whole, but are text."""
    from tokenizers import AddedToken

    # Phi-3's own tokenizer swallows the blanks after a control token.
    rstrip = model == "llama" and file.architecture == "phi3"
    plain = {"<unk>", "<s>", "<|endoftext|>"}
    control = [
        AddedToken(token, special=True, normalized=False, rstrip=rstrip and token not in plain)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _UNKNOWN) and token
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED and token
        ]
    )


def _add_ends(tokenizer: Tokenizer, file: GgufFile, tokens: Sequence[str], add_bos: bool) -> None:
    from tokenizers import processors

    stated = file.boolean("tokenizer.ggml.add_bos_token")
    bos = _token_id(file, "bos", tokens) if (add_bos if stated is None else stated) else None
    eos = _token_id(file, "eos", tokens) if file.boolean("tokenizer.ggml.add_eos_token") else None
    if bos is None and eos is None:
        return
    names = {index: tokens[index] for index in (bos, eos) if index is not None}
    single = [*([names[bos]] if bos is not None else []), "$A", *([names[eos]] if eos is not None else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[(name, index) for index, name in names.items()],
    )


def _token_id(file: GgufFile, name: str, tokens: Sequence[str]) -> int | None:
    """The id under `tokenizer.ggml.<name>_token_id`, checked against the vocabulary."""
    key = f"tokenizer.ggml.{name}_token_id"
    index = file.integer(key)
    if index is not None and tokens and not 0 <= index < len(tokens):
        raise CheckpointError(f"{file.path}: {key} is {index}, but the vocabulary has {len(tokens)} tokens.", hint=_DOWNLOAD)
    return index


def _eos_ids(file: GgufFile, tokens: Sequence[str]) -> tuple[int, ...]:
    """The file's end tokens (of sequence, turn, message), then other control tokens that are known to end a turn."""
    ids = [index for name in ("eos", "eot", "eom") if (index := _token_id(file, name, tokens)) is not None]
    types = file.integers("tokenizer.ggml.token_type")
    ids += [
        i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if token in _TURN_ENDS and kind in (_CONTROL, _USER_DEFINED)
    ]
    return tuple(dict.fromkeys(ids))
