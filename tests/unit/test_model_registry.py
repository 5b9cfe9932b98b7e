"""Finding and fetching models: cache, installed package, pip, and every way it can go wrong."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.engine.model import fetch as fetch_module
from kvscope.engine.model import registry
from kvscope.errors import ModelError

CONTENT = bytes(range(256)) * 40
FAKE = replace(
    registry.SMOLLM2,
    name="fake",
    package="kvscope-fake-model",
    version="1.0",
    module="kvscope_fake_model",
    file="fake.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a fake embedded model, and pip that sees only the folder `index`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(registry.EMBEDDED, "fake", FAKE)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache" / "kvscope" / "models"


def publish(folder: Path, content: bytes = CONTENT, member: str = "kvscope_fake_model/fake.gguf") -> Path:
    """Write a wheel that pip takes."""
    info = "kvscope_fake_model-1.0.dist-info"
    path = folder / "kvscope_fake_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kvscope-fake-model\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def entry() -> registry.ModelEntry:
    return next(entry for entry in registry.list_models() if entry.name == "fake")


def test_get_fetches_once(cache: Path, tmp_path: Path) -> None:
    assert entry().path is None
    publish(tmp_path / "index")
    seen: list[tuple[str, int, int]] = []
    path = registry.get("fake", lambda what, done, total: seen.append((what, done, total)))
    assert path == cache / "fake.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("checking", len(CONTENT), len(CONTENT))
    assert [file.name for file in cache.iterdir()] == ["fake.gguf"]  # nothing temporary is left
    assert entry().path == path
    (tmp_path / "index" / "kvscope_fake_model-1.0-py3-none-any.whl").unlink()
    assert registry.get("fake") == path
    assert registry.locate("fake") == path


@pytest.mark.parametrize("damage", ["flipped", "short", "empty"])
def test_damaged_cache_is_fetched_again(damage: str, cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "index")
    cache.mkdir(parents=True)
    bad = {"flipped": b"\xff" + CONTENT[1:], "short": CONTENT[:-1], "empty": b""}[damage]
    (cache / "fake.gguf").write_bytes(bad)
    with pytest.raises(ModelError, match="run: kvscope models get fake"):
        registry.locate("fake")
    assert registry.get("fake").read_bytes() == CONTENT
    assert registry.locate("fake").read_bytes() == CONTENT


def test_installed_package_is_used_without_running_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "kvscope_fake_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the package was run')")
    (package / "fake.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert registry.get("fake") == package / "fake.gguf"
    assert entry().path == package / "fake.gguf"
    assert not cache.exists()
    assert "kvscope_fake_model" not in sys.modules


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_not_on_the_index(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"could not be fetched: .*kvscope-fake-model==1.0") as error:
        registry.get("fake")
    assert "pip download --no-deps kvscope-fake-model==1.0" in one_line(error)
    assert list(cache.iterdir()) == []


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens on the discard port
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="check the network") as error:
        registry.get("fake")
    one_line(error)


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else plain(name))
    with pytest.raises(ModelError, match=r"no pip .* uv pip install --no-deps kvscope-fake-model==1.0") as error:
        registry.get("fake")
    one_line(error)


def test_another_file_in_the_wheel(cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "index", content=CONTENT[::-1])
    with pytest.raises(ModelError, match=r"has SHA-256 .* is not used") as error:
        registry.get("fake")
    one_line(error)
    publish(tmp_path / "index", content=CONTENT[:-5])
    with pytest.raises(ModelError, match="10,235 bytes, not 10,240"):
        registry.get("fake")
    publish(tmp_path / "index", member="elsewhere/fake.gguf")
    with pytest.raises(ModelError, match=r"does not hold kvscope_fake_model/fake\.gguf"):
        registry.get("fake")
    assert list(cache.iterdir()) == []


def test_torn_wheel(tmp_path: Path) -> None:
    wheel = publish(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(ModelError, match="undamaged") as error:
        fetch_module._extract(FAKE, wheel, tmp_path / "part", None)
    one_line(error)


def test_cache_cannot_be_made(cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "index")
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot be stored at .* XDG_CACHE_HOME") as error:
        registry.get("fake")
    one_line(error)


def test_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert registry.cache_dir() == Path.home() / ".cache" / "kvscope" / "models"


def test_unknown_names(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'gpt5' is unknown; known names: smollm2, fake"):
        registry.get("gpt5")
    with pytest.raises(ModelError, match="neither a known name"):
        registry.locate("gpt5")
    with pytest.raises(ModelError, match=r"no config\.json"):
        registry.locate(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"a \.gguf file"):
        registry.locate(tmp_path / "model.bin")


def test_the_embedded_model_is_the_known_one() -> None:
    (model,) = [entry for entry in registry.list_models() if entry.name == "smollm2"]
    assert (model.license, model.size_bytes) == ("Apache-2.0", 98_362_432)
