"""The starter's tokenizer: a plain Hugging Face BPE tokenizer in which a word has one form wherever it stands.

A tiny model copies arguments from what it read (`report.txt` in a request, `"report.txt"` in a call), and it only learns
to when both are the same tokens. So the normalizer marks words, not spaces:

1. `▁` stands before every word (letters and underscores) and takes the place of one space before it, if there is one;
2. `⁀` (glue) stands before `▁` where a word follows something other than a space: `'report` is `'⁀▁report`;
3. the glue is cut off together with the punctuation before it, so words stay `▁report` and quotes become `'⁀`;
4. digits are single tokens; at the very start of a text a word needs no glue;
5. the two marks and the escape `␛` themselves, should they occur in a text, are written as `␛` and a letter.

Every step has an inverse in the decoder, so a text comes back byte for byte; what the vocabulary lacks falls back to bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

WORD, GLUE, ESCAPE = "▁", "⁀", "␛"
CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_ESCAPES = ((ESCAPE, "x"), (WORD, "m"), (GLUE, "g"))
_LETTER = r"[\p{L}_]"

# A call's fixed text in one token each; the name and the arguments between them stay ordinary words.
_CALL_SCAFFOLD = rf'\{{"{GLUE}{WORD}name": "{GLUE}|", "{GLUE}{WORD}arguments": \{{("{GLUE}|\}})?'
_MARK = rf"[^\p{{L}}\p{{N}}_\s{WORD}{GLUE}{ESCAPE}]"
_PIECES = "|".join(
    (
        _CALL_SCAFFOLD,
        rf"{WORD}{_LETTER}+",
        rf" ?{_MARK}+(?: {_MARK}+)*(?: (?=\p{{N}}))?{GLUE}?",
        r"\p{N}",
        rf"\s+{GLUE}?",
        r"[\s\S]",
    )
)


def train_tokenizer(texts: Iterable[str], words: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocab_size` entries learned from `texts`, in which each of `words` is a single token.

    `words` are made of letters and underscores: names of functions and parameters, frequent words. Raises ValueError
    where they leave no room for anything else.
    """
    needed = len(CONTROL_TOKENS) + 256 + len(set(words)) + 256
    if vocab_size < needed:
        raise ValueError(f"vocab_size {vocab_size} has no room for {len(set(words))} whole words; at least {needed} are needed")
    tokenizer = Tokenizer(BPE(byte_fallback=True))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    whole = [WORD + word for word in dict.fromkeys(words)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS) - len(bytes_) - len(whole),
        initial_alphabet=[chr(code) for code in range(32, 127)] + ["\n", "\t", WORD, GLUE, ESCAPE],
        limit_alphabet=160,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = {token: index for index, token in enumerate([*CONTROL_TOKENS, *bytes_])}
    for token in [*sorted(model["vocab"], key=model["vocab"].get), *whole]:
        vocab.setdefault(token, len(vocab))
    # Whole words need no chain of merges: a piece that is in the vocabulary is taken as it is.
    tokenizer.model = BPE(vocab, [tuple(pair) for pair in model["merges"]], byte_fallback=True, ignore_merges=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.decoder = _decoder()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(CONTROL_TOKENS),
        clean_up_tokenization_spaces=False,
    )


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            *(normalizers.Replace(mark, ESCAPE + letter) for mark, letter in _ESCAPES),
            # A word after anything but a space, and a word after the space that opens the text.
            normalizers.Replace(Regex(rf"(?<!\A)(?<=[^\p{{L}}_ ])(?={_LETTER})"), GLUE + WORD),
            normalizers.Replace(Regex(rf"(?<=\A )(?={_LETTER})"), GLUE + WORD),
            normalizers.Replace(Regex(rf"(?<!\A) (?={_LETTER})"), WORD),
            normalizers.Replace(Regex(rf"\A(?={_LETTER})"), WORD),
        ]
    )


def _decoder() -> decoders.Decoder:
    after_control = "|".join(token.replace("|", r"\|") for token in CONTROL_TOKENS)
    return decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(GLUE + WORD, ""),
            # The text of each segment between control tokens starts anew.
            decoders.Replace(Regex(rf"(?<=\A|{after_control}){WORD}"), ""),
            decoders.Replace(WORD, " "),
            *(decoders.Replace(ESCAPE + letter, mark) for mark, letter in reversed(_ESCAPES)),
        ]
    )
