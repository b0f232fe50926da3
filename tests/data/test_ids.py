"""Token ids in files of NumPy: splits, documents, names, and input that is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import corpus_of, files
from txl_lightning.data import own_files
from txl_lightning.data.corpus import SPLITS, Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import UserError

IDS = np.arange(1000) % 37


def ids_of(path: Any, folder: Path, marked: bool = False, **options: Any) -> Corpus:
    return corpus_of(path, folder, marked, **{"level": "ids", **options})


def saved(folder: Path, ids: Any, name: str = "notes.npy") -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    np.save(folder / name, ids)
    return str(folder / name)


def joined(corpus: Corpus) -> np.ndarray:
    return np.concatenate([without_marks(corpus.splits[split]) for split in SPLITS])


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">u2", "<i4", ">i8", "u8"])
def test_a_file_of_any_integers_is_mapped_and_cut_by_fractions(tmp_path: Path, dtype: str) -> None:
    path = saved(tmp_path, IDS.astype(dtype))
    corpus = ids_of(path, tmp_path, fractions=[0.5, 0.3, 0.2])
    assert [len(corpus.splits[split]) for split in SPLITS] == [500, 300, 200]
    assert np.array_equal(joined(corpus), IDS)
    assert all(isinstance(corpus.splits[split].tokens.base, np.memmap) for split in SPLITS)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size > 500 and path.is_file()]
    assert (corpus.name, len(corpus.vocabulary), corpus.vocabulary.decode([3, 36])) == ("notes.npy", 37, "3 36")


@pytest.mark.parametrize("dtype", own_files.RAW_DTYPES)
def test_a_raw_file_is_read_with_its_type_and_the_vocabulary_may_be_larger(tmp_path: Path, dtype: str) -> None:
    IDS.astype(dtype).tofile(tmp_path / "notes.bin")
    corpus = ids_of(str(tmp_path / "notes.bin"), tmp_path, dtype=dtype, vocab_size=50)
    assert np.array_equal(joined(corpus), IDS)
    assert len(corpus.vocabulary) == 50
    with (tmp_path / "notes.bin").open("wb") as file:
        np.save(file, IDS)  # an array is one under any name
    assert np.array_equal(joined(ids_of(str(tmp_path / "notes.bin"), tmp_path, dtype=dtype)), IDS)


def test_every_split_may_have_its_own_file(tmp_path: Path) -> None:
    parts = {"train.bin": IDS[:800], "val.bin": IDS[800:]}
    train, valid = files(tmp_path / "ids", {name: part.astype(np.uint16).tobytes() for name, part in parts.items()})
    corpus = ids_of([train, valid, valid], tmp_path, dtype="uint16")
    assert [corpus.splits[split][:].tolist() for split in SPLITS] == [IDS[:800].tolist(), *[IDS[800:].tolist()] * 2]
    by_name = ids_of(str(tmp_path / "ids"), tmp_path, dtype="uint16")
    assert by_name.splits["valid"][:].tolist() == IDS[800:].tolist()


def test_the_arrays_of_a_folder_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "IDS_AT_ONCE", 64)  # several chunks in a document
    for number, part in enumerate(np.split(IDS, [100, 250, 470, 700])):
        saved(tmp_path, part.astype("u2" if number % 2 else "i8"), f"pieces/{number}.npy")
    saved(tmp_path, np.zeros(0, np.int64), "pieces/empty.npy")
    (tmp_path / "pieces/names.txt").write_text("not an array")
    for marked in (False, True):
        corpus = ids_of(str(tmp_path / "pieces"), tmp_path, marked)
        assert np.array_equal(joined(corpus), IDS)
        assert corpus.documents["train"].tolist() == [0, 100, 250, 470, 700]
        begun = np.flatnonzero(np.asarray(corpus.splits["train"]) < 0)
        assert begun.tolist() == (corpus.documents["train"].tolist() if marked else [])


@pytest.mark.parametrize("start", ["7", "<go>"])
def test_an_id_may_begin_documents_by_its_number_or_its_name(tmp_path: Path, start: str) -> None:
    (names,) = files(tmp_path, {"vocab.json": json.dumps({"<go>": 7, "x": 40})})
    corpus = ids_of(saved(tmp_path, IDS), tmp_path, marked=True, names=names, document_start=start)
    assert corpus.documents["train"].tolist() == [0, *range(7, 900, 37)]
    assert (len(corpus.vocabulary), corpus.vocabulary.decode([7, 8, 40])) == (41, "<go> 8 x")
    assert corpus.vocabulary.encode(b"x 8\n<go>").tolist() == [40, 8, 7]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (IDS / 2, {}, r"data.path=.*notes.npy: must hold an array of integers, not float64"),
    (np.array([{}]), {}, r"data.path=.*notes.npy: cannot be read"),
    (IDS.reshape(10, 100), {}, r"must have one dimension, not the shape \(10, 100\): save ids.ravel\(\)"),
    (IDS[:0], {}, r"data.path=.*notes.npy: must have ids: it is empty"),
    (IDS[:4], {}, r"the valid split is empty: it is too short"),
    (IDS - 3, {}, r"data.path=.*notes.npy: has the negative id -3"),
    (IDS, {"vocab_size": 36}, r"data.path=.*: has the id 36, the vocabulary .data.vocab_size. only ids from 0 to 35"),
    (np.array([1, 2**40]), {}, r"data.vocab_size=None: must be given: the largest of 2 ids is 1099511627776"),
    (IDS, {"vocab_size": 2**31}, r"data.vocab_size=2147483648: must be an integer >= 1 and below 2\^31"),
    (IDS, {"vocab_size": 2**31 - 1}, r"data.vocab_size=2147483647: needs at least 1,074 GB of memory"),
    (IDS, {"level": "byte"}, r"data.level=byte: must be ids for .*notes.npy: it holds an array of NumPy"),
    (IDS, {"names": "/nowhere.txt"}, r"data.names=/nowhere.txt: must have a name in each line"),
]


@pytest.mark.parametrize(("ids", "options", "words"), REFUSED)
def test_what_is_no_sequence_of_ids_is_refused(tmp_path: Path, ids: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        ids_of(saved(tmp_path, ids), tmp_path, **options)
    assert "\n" not in str(error.value)
