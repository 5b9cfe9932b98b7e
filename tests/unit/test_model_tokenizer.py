"""Tokenizers: tricky strings, streaming, chat templates, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from kvscope.engine.model.chat import ChatTemplate
from kvscope.engine.model.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from kvscope.errors import ModelError, UsageError

TRICKY = [
    "",
    " ",
    "   leading and trailing   ",
    "tabs\tand\nnew\n\nlines\r\n  \t mixed",
    "2024, 3.14159 and 1,000,000; x2 y10",
    "year  2024   5",
    "it's we'll I'M they'd",
    "naïve façade Zürich Ελληνικά русский עברית العربية हिन्दी 中文 日本語 한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭 emoji 🎉🎉",
    "def f(x):\n    return x**2  # comment\n\n\tif x != 0x1F: pass",
    "<|im_start|>user\nhi<|im_end|>\n",
    "half <|im_start and <|endoftext|>glued<|im_end|><|im_end|>",
    "e\u0301 combining, \u200b zero width, \u00a0 hard space, \ufeff mark",
    "\x00\x01 control \x7f",
    "①②③ Ⅷ ½ ٣٤٥ digits",
    "Supercalifragilisticexpialidocious" * 5,
    "\ufffd replacement",
    "{'json': [1, 2, {\"a\": null}]}",
]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def gguf_fields(pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """A vocabulary of all bytes, two merges and two special tokens."""
    tokens = [*BYTES, "th", "the", "<|begin|>", "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 3],
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 259,
        **more,
    }


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    from kvscope.engine.model.gguf import GgufFile

    return tokenizer_from_gguf("smollm2", GgufFile(smollm2_path).fields, (2,))


@pytest.mark.model
def test_smollm2_equals_transformers(smollm2: Tokenizer, smollm2_path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # transformers takes GPT-2's cutting for every GGUF file; SmolLM2's own tokenizer.json cuts digits apart first.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), theirs.backend_tokenizer.pre_tokenizer]
    )
    for text in TRICKY:
        ids = smollm2.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert smollm2.encode(text, add_special=True) == theirs(text)["input_ids"], text
        assert smollm2.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert smollm2.decode(ids, skip_special=False) == text
    chat = [{"role": "user", "content": "Who are you?"}]
    assert smollm2.chat(chat) == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


@pytest.mark.model
def test_smollm2_cuts_digits_apart(smollm2: Tokenizer) -> None:
    one = smollm2.encode("1")
    assert smollm2.encode("1111") == one * 4
    # Two spaces stay one token before a digit; GPT-2's pattern alone would split them.
    assert smollm2.encode("a  1") == [*smollm2.encode("a  "), *one]
    assert smollm2.vocab_size == 49152
    assert smollm2.encode("<|im_start|>") == [1]


@pytest.mark.model
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 49151), max_size=40))
def test_smollm2_streams_any_ids(smollm2: Tokenizer, ids: list[int]) -> None:
    stream = smollm2.stream()
    assert "".join([*(stream.push(token) for token in ids), stream.finish()]) == smollm2.decode(ids)


def byte_tokenizer() -> Tokenizer:
    return tokenizer_from_gguf("bytes", gguf_fields(), (259,))


@pytest.mark.parametrize("text", TRICKY)
def test_stream_never_ends_inside_a_character(text: str) -> None:
    tokenizer = byte_tokenizer()  # most characters take several tokens here
    stream, so_far = tokenizer.stream(), ""
    for token in tokenizer.encode(text):
        so_far += stream.push(token)
        assert text.startswith(so_far)
    assert so_far + stream.finish() == text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 259), max_size=24))
def test_stream_equals_decode_for_broken_bytes_too(ids: list[int]) -> None:
    tokenizer = byte_tokenizer()
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in ids]
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids)


def test_stream_after_a_context() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("grüße the 🎉 end")
    for cut in range(len(ids) + 1):
        before, after = ids[:cut], ids[cut:]
        if tokenizer.decode(before).endswith("\ufffd"):
            continue
        stream = tokenizer.stream(before)
        text = "".join([*(stream.push(token) for token in after), stream.finish()])
        assert tokenizer.decode(before) + text == tokenizer.decode(ids)


def test_stream_is_linear_in_length() -> None:
    tokenizer, calls = byte_tokenizer(), []
    plain = tokenizer.decode
    tokenizer.decode = lambda ids, **more: calls.append(len(ids)) or plain(ids, **more)  # type: ignore[method-assign]
    stream = tokenizer.stream()
    for token in tokenizer.encode("the theory " * 200):
        stream.push(token)
    assert max(calls) <= 8


def test_special_tokens_are_skipped_only_when_asked() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("<|begin|>the<|end|>")
    assert ids == [258, 257, 259]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special=False) == "<|begin|>the<|end|>"


@pytest.mark.parametrize(
    ("pre", "add_bos", "begins"),
    [("gpt-2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", True, True)],
)
def test_begin_token(pre: str, add_bos: bool | None, begins: bool) -> None:
    more = {} if add_bos is None else {"tokenizer.ggml.add_bos_token": add_bos}
    tokenizer = tokenizer_from_gguf("bytes", gguf_fields(pre, **more), ())
    assert (tokenizer.encode("the", add_special=True)[0] == 258) is begins
    assert tokenizer.encode("the") == [257]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["x", "12345", "'s", " THE", " ", " 6"]),
        ("smollm", ["x", "1", "2", "3", "4", "5", "'s", " THE", "  ", "6"]),
        ("llama-bpe", ["x", "123", "45", "'s", " THE", " ", " ", "6"]),
        ("qwen2", ["x", "1", "2", "3", "4", "5", "'s", " THE", " ", " ", "6"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(pre: str, pieces: list[str]) -> None:
    from kvscope.engine.model import tokenizer as module

    cut = [piece.replace("Ġ", " ") for piece, _ in module._PRE_TOKENIZERS[pre].pre_tokenize_str("x12345's THE  6")]
    assert cut == pieces


def test_qwen2_composes_characters() -> None:
    tokenizer = tokenizer_from_gguf("bytes", gguf_fields("qwen2"), ())
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


def test_folder_tokenizer_equals_its_file(tiny_folder: Path) -> None:
    tokenizer = tokenizer_from_folder(tiny_folder, (257,))
    plain = Backend.from_file(str(tiny_folder / "tokenizer.json"))
    for text in TRICKY:
        assert tokenizer.encode(text) == plain.encode(text).ids
    assert not tokenizer.has_chat_template
    with pytest.raises(ModelError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("place", ["config", "named", "jinja"])
def test_folder_chat_template(place: str, tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_folder / "tokenizer.json", tmp_path)
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    settings: dict[str, Any] = {"bos_token": {"content": "<|begin|>"}}
    if place == "config":
        settings["chat_template"] = source
    elif place == "named":
        settings["chat_template"] = [{"name": "tools", "template": "x"}, {"name": "default", "template": source}]
    else:
        (tmp_path / "chat_template.jinja").write_text(source)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = tokenizer_from_folder(tmp_path, ())
    assert tokenizer.chat([{"role": "user", "content": " hi "}]) == "<|begin|>[user]hi"


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", UsageError, "roles must alternate"),
        ("{% for m in messages %}", ModelError, "cannot be rendered"),
        ("{{ messages[5]['content'] }}", ModelError, "cannot be rendered"),
        ("{{ ''.__class__.__mro__ }}", ModelError, "cannot be rendered"),
        ("{{ messages.append(1) }}", ModelError, "cannot be rendered"),
        ("{{ messages + 1 }}", ModelError, "cannot be rendered"),
    ],
)
def test_bad_chat_templates(source: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        ChatTemplate("m", source).render([{"role": "user", "content": "hi"}])
    assert "\n" not in str(caught.value)


def test_chat_template_has_the_usual_helpers() -> None:
    source = "{{ strftime_now('%Y') | length }}{{ {'é': 1} | tojson }}{% for i in [1, 2] %}{% break %}{% endfor %}"
    assert ChatTemplate("m", source).render([]) == '4{"é": 1}'


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(UsageError, match="surrogate at character 3"):
        byte_tokenizer().encode("abc\ud800")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer kind 'llama'"),
        ({"tokenizer.ggml.model": None}, "tokenizer kind None"),
        ({"tokenizer.ggml.pre": "deepseek-coder"}, "pre-tokenizer 'deepseek-coder'"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "broken merges"),
        ({"tokenizer.ggml.merges": ["th zz"]}, "makes no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "repeats tokens"),
    ],
)
def test_bad_gguf_vocabularies(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        tokenizer_from_gguf("m", {**gguf_fields(), **change}, ())
    assert "\n" not in str(caught.value)


def test_bad_folder_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        tokenizer_from_folder(tmp_path, ())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": 7}')
    with pytest.raises(ModelError, match="cannot be read as a tokenizer") as caught:
        tokenizer_from_folder(tmp_path, ())
    assert "\n" not in str(caught.value)


def test_random_bytes_of_text_survive() -> None:
    tokenizer, draw = byte_tokenizer(), random.Random(5)
    for _ in range(50):
        text = "".join(
            chr(draw.choice([draw.randrange(32, 0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(9)
        )
        assert tokenizer.decode(tokenizer.encode(text)) == text
