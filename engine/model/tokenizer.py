"""Text to token ids and back: from a tokenizer.json, or built from the vocabulary inside a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvscope.engine.model.chat import ChatTemplate
from kvscope.engine.model.text import one_line, read_json, short
from kvscope.errors import ModelError, UsageError

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    """The pattern of Llama 3 and Qwen 2, which differ in how many digits stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _BYTES])


# How text is cut before merging, by `tokenizer.ggml.pre`.
_PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
    "llama-bpe": _split(r"\p{N}{1,3}"),
    "qwen2": _split(r"\p{N}"),
}
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


class Tokenizer:
    """Encodes and decodes for one model, and renders its chat template."""

    def __init__(self, backend: Backend, *, eos_ids: Sequence[int], template: ChatTemplate) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self.eos_ids = tuple(eos_ids)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; a model's logits may be padded to more."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can work."""
        return self._template.source is not None

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Turn text into token ids; names of special tokens in the text become those tokens.

        Args:
            text: any text.
            add_special: also add what the model expects around a plain text, such as a begin token.

        Raises:
            UsageError: the text holds lone surrogates, which are no characters.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text is not valid Unicode: a lone surrogate at character {error.start}; fix its encoding"
            ) from None
        return list(self._backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Turn token ids into text; bytes that form no character become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render messages ({"role", "content"}) with the model's template, ready for its answer.

        The text holds all special tokens it needs: encode it with add_special=False.

        Raises:
            ModelError: the model has no chat template, or a broken one.
            UsageError: the template refuses these messages.
        """
        return self._template.render(messages)

    def stream(self, context: Sequence[int] = ()) -> TextStream:
        """Start turning a sequence into text while it grows; `context` are the ids before its first."""
        return TextStream(self, context)


class TextStream:
    """Text of a growing sequence, piece by piece: the pieces joined are `decode` of all its ids.

    A piece never ends inside a character; bytes that form none are held back until the next character or `finish`.
    """

    _CONTEXT = 4  # enough for decoders that look at the token before

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(context[-self._CONTEXT :])
        self._given = tokenizer.decode(self._ids)
        # A context may end inside a character, which decodes to U+FFFD: a wrong base to measure from.
        if self._given.endswith("\ufffd"):
            self._ids, self._given = [], ""

    def push(self, token: int) -> str:
        """Add one token; return the text that is now certain, often one word, sometimes none."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") or len(text) <= len(self._given):
            return ""
        piece = text[len(self._given) :]
        # The kept ids may begin inside a character; its bytes decode to the same U+FFFDs whatever follows them.
        self._ids = self._ids[-self._CONTEXT :]
        self._given = self._tokenizer.decode(self._ids)
        return piece

    def finish(self) -> str:
        """Return what was held back: the text of an unfinished character, or none."""
        return self._tokenizer.decode(self._ids)[len(self._given) :]


def tokenizer_from_folder(folder: Path, eos_ids: Sequence[int]) -> Tokenizer:
    """Read tokenizer.json and the chat template of a Hugging Face folder.

    Raises:
        ModelError: no tokenizer.json, or one that cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json; save the model's fast tokenizer there")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises plain Exception
        raise ModelError(f"{path} cannot be read as a tokenizer: {one_line(error)}; fetch it again") from None
    config_path = folder / "tokenizer_config.json"
    settings = read_json(config_path) if config_path.is_file() else {}
    source = settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in source if isinstance(entry, dict) and "name" in entry}
        source = named.get("default")
    template_path = folder / "chat_template.jinja"
    if template_path.is_file():
        source = template_path.read_text(encoding="utf-8", errors="replace")
    tokens = {key: _content(settings.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    template = ChatTemplate(folder.resolve().name, source if isinstance(source, str) else None, tokens)
    return Tokenizer(backend, eos_ids=eos_ids, template=template)


def _content(token: object) -> str:
    """Text of a special token, which tokenizer_config.json gives as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def tokenizer_from_gguf(name: str, fields: Mapping[str, Any], eos_ids: Sequence[int]) -> Tokenizer:
    """Build the tokenizer that a GGUF header describes.

    Args:
        name: what to call the model in messages.
        fields: the key-value part of the header.
        eos_ids: ids that end a text.

    Raises:
        ModelError: another kind than byte-level BPE, an unknown pre-tokenizer, or incomplete vocabulary.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"model {name}: tokenizer kind {short(kind)} in GGUF is not supported, only 'gpt2' (byte-level BPE); "
            "use the model's safetensors folder with its tokenizer.json"
        )
    pre = str(fields.get("tokenizer.ggml.pre"))
    pre = _ALIASES.get(pre, pre)
    if pre not in _PRE_TOKENIZERS:
        raise ModelError(
            f"model {name}: pre-tokenizer {short(pre)} is not supported (only {', '.join(_PRE_TOKENIZERS)}); "
            "use the model's safetensors folder with its tokenizer.json"
        )
    backend = Backend(_bpe(name, fields, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]
    backend.decoder = decoders.ByteLevel()
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds = fields.get("tokenizer.ggml.token_type")
    for token, token_kind in zip(tokens, kinds if isinstance(kinds, list) else (), strict=False):
        if token_kind in (_CONTROL, _USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=token_kind == _CONTROL, normalized=False)])
    special = {which: _token(fields, tokens, which) for which in ("bos", "eos", "unknown", "padding")}
    bos = special["bos"]
    if bos and fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        bos_id = int(fields["tokenizer.ggml.bos_token_id"])
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    source = fields.get("tokenizer.chat_template")
    names = {"bos_token": bos, "eos_token": special["eos"], "unk_token": special["unknown"]}
    template = ChatTemplate(
        name, source if isinstance(source, str) else None, {**names, "pad_token": special["padding"]}
    )
    return Tokenizer(backend, eos_ids=eos_ids, template=template)


def _token(fields: Mapping[str, Any], tokens: Sequence[str], which: str) -> str:
    value = fields.get(f"tokenizer.ggml.{which}_token_id")
    return tokens[value] if isinstance(value, int) and 0 <= value < len(tokens) else ""


def _bpe(name: str, fields: Mapping[str, Any], *, ignore_merges: bool) -> models.BPE:
    tokens, merges = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list) or not all(isinstance(t, str) for t in tokens):
        raise ModelError(f"model {name}: its GGUF file has no vocabulary or no merges; fetch it again")
    vocab = {token: index for index, token in enumerate(tokens)}
    # No byte is written as a space in this alphabet, so the one space in a merge parts its two sides.
    halves = [str(merge).partition(" ") for merge in merges]
    pairs = [(left, right) for left, _, right in halves if right]
    if len(vocab) != len(tokens) or len(pairs) != len(merges):
        raise ModelError(f"model {name}: its GGUF vocabulary repeats tokens or has broken merges; fetch it again")
    try:
        return models.BPE(vocab, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises plain Exception
        raise ModelError(
            f"model {name}: its GGUF vocabulary makes no tokenizer: {one_line(error)}; fetch it again"
        ) from None
