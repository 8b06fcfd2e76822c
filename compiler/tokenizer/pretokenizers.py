"""How each pre-tokenizer that a GGUF file may name (`tokenizer.ggml.pre`) cuts text before byte-level BPE.

A GGUF file carries no regular expression, only a name; the expressions are those of the models' own tokenizers. Each is applied in turn to
the pieces that the one before it left; what lies between two matches is a piece too.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixplan.runtime.errors import UnsupportedError

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """Regular expressions in order, and what the name implies besides.

    ignore_merges: a piece that is a token of its own is taken whole, whatever the merges say. add_bos: unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _modern(numbers: str, letters: str = r"[^\r\n\p{L}\p{N}]?\p{L}+") -> str:
    """The shape that cl100k began: contractions, words with one leading sign, numbers, punctuation with its line ends, blanks."""
    return rf"{_CONTRACTIONS}|{letters}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"


def _cased(numbers: str, suffix: str = "") -> str:
    """The shape that o200k began: words cut where lower case turns to upper case."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"


_LLAMA3 = _modern(r"\p{N}{1,3}")
_QWEN2 = _modern(r"\p{N}")
_QWEN35 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"


def _ranges(pairs: str) -> str:
    """The inside of a character class from hexadecimal code points and ranges: letters of other scripts have look-alikes in source text."""
    return "".join("-".join(f"\\x{{{point}}}" for point in pair.split("-")) for pair in pairs.split())


_WORDS_AND_SIGNS = rf" ?[^(\s|.,!?{_ranges('2026 3002 FF0C 3001 0964 06D4 060C')})]+"
_HAN_AND_HANGUL = f"[{_ranges('4E00-9FA5 0800-4E00 AC00-D7FF')}]+"
_HAN_AND_KANA = f"[{_ranges('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_SIGNS = rf"\s?[!-/:-~{_ranges('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+"
# The letters of the scripts with upper and lower case, as DeepSeek's first tokenizer lists them.
_CASED_SCRIPTS = _ranges(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 "
    "48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 "
    "2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 "
    "FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + _TAIL
)

_GPT2_PRE = PreTokenizer((_GPT2,))
_DIGITS_PRE = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_PRE = PreTokenizer((_LLAMA3,))
_QWEN2_PRE = PreTokenizer((_QWEN2,))
_GPT4O_PRE = PreTokenizer((_cased(r"\p{N}{1,3}", _CONTRACTIONS + "?"),))
_DEEPSEEK3_PRE = PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3_WORDS))
_BAILING_PRE = PreTokenizer((r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"), _GPT2_PRE
    ),
    **dict.fromkeys(("roberta-bpe", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion", "granite-docling"), _GPT2_PRE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_PRE),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_PRE),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"), _QWEN2_PRE
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    "deepseek-llm": PreTokenizer((r"[\r\n]", rf"\s?[{_CASED_SCRIPTS}]+", _SIGNS, r"\s+$", _HAN_AND_HANGUL, r"\p{N}+")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3_PRE),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": PreTokenizer((_cased(r"\p{N}"),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O_PRE),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_WORDS_AND_SIGNS,))),
    "viking": PreTokenizer((_WORDS_AND_SIGNS, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_PRE),
    "seed-coder": PreTokenizer((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}",)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of that name; UnsupportedError for one that mixplan does not know, since a guess gives wrong token ids."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedError(
            f"The GGUF file's pre-tokenizer (tokenizer.ggml.pre) is {name!r}, which mixplan does not know; it knows "
            f"{', '.join(sorted(PRE_TOKENIZERS))}.",
            hint="Compile the model's Hugging Face directory instead: it holds the whole tokenizer.",
        )
    return found
