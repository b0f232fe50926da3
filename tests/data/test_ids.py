"""Token ids in files of several libraries: splits, documents, names, and input that is refused."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from tokenizers import Tokenizer, models

from tests.data.helpers import corpus_of, files
from tests.data.writers import (
    IDS,
    LISTS,
    LIT_GPT,
    STARTS,
    json_lines,
    write_lists,
    write_llm_c,
    write_megatron,
)
from txl_lightning.config.schemas import FileData, file_data
from txl_lightning.data import sources
from txl_lightning.data.corpus import SPLITS, Corpus
from txl_lightning.data.ids import RAW_DTYPES, names_of_ids
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import OptionError, UserError

FEW = np.arange(1000) % 37


def ids_of(path: Any, folder: Path, marked: bool = False, **options: Any) -> Corpus:
    return corpus_of(
        path,
        folder,
        marked,
        **{"level": "ids", **options},
    )


def saved(folder: Path, ids: Any, name: str = "notes.npy") -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    np.save(folder / name, ids)
    return str(folder / name)


def written(name: str, content: bytes | str) -> Callable[[Path], Path]:
    """Return a function that writes a file into a folder."""
    return lambda folder: Path(*files(folder, {name: content}))


def joined(corpus: Corpus) -> np.ndarray:
    return np.concatenate([without_marks(corpus.splits[split]) for split in SPLITS])


ID_LINES = json_lines([{"n": 1, "input_ids": ids} for ids in LISTS])
MIDITOK = json.dumps({"ids": LISTS, "programs": []})


WITH_DOCUMENTS = {
    "Megatron": write_megatron,
    "Megatron by its prefix": lambda folder: write_megatron(folder, "uint16", 8).with_suffix(""),
    "fairseq by its index": lambda folder: write_megatron(
        folder, "int64", 5, is_fairseq=True
    ).with_suffix(".idx"),
    "Parquet": lambda folder: write_lists(folder, "a.parquet", pyarrow.int32()),
    "Feather": lambda folder: write_lists(folder, "feather.arrow", pyarrow.uint16()),
    "Arrow stream": lambda folder: write_lists(folder, "a.arrow", pyarrow.int64()),
    "JSON lines": written("a.jsonl", ID_LINES),
    "JSON of MidiTok": written("a.json", MIDITOK),
}
WITHOUT_DOCUMENTS = {
    "llm.c": write_llm_c,
    "llm.c for Llama 3": lambda folder: write_llm_c(folder, 20240801, "uint32"),
    "raw .npy of OLMo": written("part-0.npy", IDS.tobytes()),
}
WRITERS = {**WITH_DOCUMENTS, **WITHOUT_DOCUMENTS}


@pytest.mark.parametrize("name", WRITERS)
def test_ids_and_documents_are_those_of_the_writer(tmp_path, name):
    (tmp_path / "data").mkdir()
    path = WRITERS[name](tmp_path / "data")
    dtype = "uint16" if name == "raw .npy of OLMo" else None
    corpus = ids_of(str(path), tmp_path, dtype=dtype)
    assert joined(corpus).tolist() == IDS.tolist()
    assert len(corpus.vocabulary) == IDS.max() + 1
    assert [len(corpus.splits[split]) for split in SPLITS] == [900, 50, 50]
    assert corpus.documents["train"].tolist() == (STARTS if name in WITH_DOCUMENTS else [0])


@pytest.mark.parametrize("dtype", ["u1", ">u2", ">i8"])
def test_a_file_of_any_integers_is_cut_by_fractions(tmp_path, dtype):
    path = saved(tmp_path, FEW.astype(dtype))
    corpus = ids_of(
        path,
        tmp_path,
        fractions=[0.5, 0.3, 0.2],
    )
    assert [len(corpus.splits[split]) for split in SPLITS] == [500, 300, 200]
    assert np.array_equal(joined(corpus), FEW)
    assert corpus.vocabulary.decode([3, 36]) == "3 36"


@pytest.mark.parametrize("dtype", RAW_DTYPES)
def test_a_raw_file_is_read_with_its_type_and_the_vocabulary_may_be_larger(tmp_path, dtype):
    (path,) = files(
        tmp_path,
        {"notes.bin": FEW.astype(dtype).tobytes()},
    )
    corpus = ids_of(path, tmp_path, dtype=dtype, vocab_size=50)
    assert np.array_equal(joined(corpus), FEW)
    assert len(corpus.vocabulary) == 50


@pytest.mark.parametrize("marked", [False, True])
def test_the_arrays_of_a_folder_are_documents(tmp_path, monkeypatch, marked):
    monkeypatch.setattr(sources, "CHUNK", 64)  # several chunks in a document
    starts = [0, 100, 250, 470, 700]
    for number, part in enumerate(np.split(FEW, starts[1:])):
        dtype = "u2" if number % 2 else "i8"
        saved(
            tmp_path,
            part.astype(dtype),
            f"pieces/{number}.npy",
        )
    corpus = ids_of(
        str(tmp_path / "pieces"),
        tmp_path,
        marked,
    )
    assert np.array_equal(joined(corpus), FEW)
    assert corpus.documents["train"].tolist() == starts
    begun = np.flatnonzero(np.asarray(corpus.splits["train"]) < 0)
    assert begun.tolist() == (starts if marked else [])


def test_index_maps_of_trainings_are_left_out(tmp_path):
    """Megatron writes them below `PREFIX/cache`, GPT-NeoX beside the data: 0.5.0 read `sample_idx` as ids."""
    write_megatron(tmp_path)
    files(tmp_path, {"corpus_text_document/cache/0-train-document_index.npy": b"\x93NUMPY"})
    prefix = "corpus_text_document_train_indexmap_9ns_8sl_1234s"
    saved(
        tmp_path,
        np.arange(5),
        f"{prefix}_doc_idx.npy",
    )
    saved(
        tmp_path,
        np.zeros((10, 2), np.int32),
        f"{prefix}_sample_idx.npy",
    )
    saved(
        tmp_path,
        np.arange(9),
        f"{prefix}_shuffle_idx.npy",
    )
    assert joined(ids_of(str(tmp_path), tmp_path / "elsewhere")).tolist() == IDS.tolist()


@pytest.mark.parametrize("start", ["7", "<go>"])
def test_an_id_may_begin_documents_by_its_number_or_its_name(tmp_path, start):
    (names,) = files(
        tmp_path,
        {"vocab.json": json.dumps({"<go>": 7, "x": 40})},
    )
    path = saved(tmp_path, FEW)
    corpus = ids_of(
        path,
        tmp_path,
        True,
        names=names,
        document_start=start,
    )
    assert corpus.documents["train"].tolist() == [0, *range(7, 900, 37)]
    assert len(corpus.vocabulary) == 41
    assert corpus.vocabulary.decode([7, 8, 40]) == "<go> 8 x"
    assert corpus.vocabulary.encode(b"x 8\n<go>").tolist() == [40, 8, 7]


ROW = "must be integers in one dimension, not"
REFUSED = [
    (FEW / 2, {}, f"notes.npy: {ROW} float64"),
    (np.array([{}]), {}, "notes.npy: cannot be read"),
    (FEW.reshape(10, 100), {}, rf"{ROW} int64 \(10, 100\): save ids.ravel\(\)"),
    (FEW[:0], {}, "must have text or ids: notes.npy is empty"),
    (FEW[:4], {}, "the valid split is empty: it is too short"),
    (FEW - 3, {}, "must have ids, none of them negative"),
    (FEW, {"vocab_size": 36}, "has the id 36, the vocabulary .* only 36 ids"),
    (
        np.append(FEW, 2**40),
        {},
        "must be given, or the type of the ids is wrong: .*largest.: 1099511627776",
    ),
    (FEW * (FEW < 9), {}, "must be given, .*number.: 1000, .*zeros.: 784"),
    (FEW, {"vocab_size": 0}, r"data.vocab_size=0: must be an integer >= 1"),
    (FEW, {"vocab_size": 2**31 - 1}, "needs at least 1,074 GB of memory"),
    (FEW, {"level": "byte"}, "notes.npy: has no suffix that names a format"),
    (FEW, {"names": "/nowhere.txt"}, "data.names=/nowhere.txt: must have a name in each line"),
]


@pytest.mark.parametrize(("ids", "options", "words"), REFUSED)
def test_what_is_no_sequence_of_ids_is_refused(tmp_path, ids, options, words):
    with pytest.raises(UserError, match=words) as error:
        ids_of(saved(tmp_path, ids), tmp_path, **options)
    assert "\n" not in str(error.value)


HALF = IDS[:500].tobytes()
UNLIKE = "unlike plain ids: save them with numpy.save, or data.format=raw"
UNLIKE_IDS = [
    ({"a.bin": b"this is text, not ids " * 99}, f"begins with b'this is text, no' .*{UNLIKE}"),
    ({"train_0.bin": LIT_GPT}, f"begins with b'LITPKDS.*{UNLIKE}"),
    ({"index.json": b'{"chunks": []}', "chunk-0-0.bin": HALF}, "or has an index beside it"),
    ({"a.bin": pickle.dumps(["a list of words"] * 5, 4)}, UNLIKE),
    ({"shard.00000.mds": HALF}, "no suffix that names a format"),
    ({"a.bin": HALF, "a.idx": b"TNTIDX\0\0" + bytes(18)}, "must have an index of Megatron or"),
    ({"odd.bin": b"\0\2\3"}, "odd.bin: cannot be read .*not a multiple of the data-type"),
    ({"odd.npy": b"\x93NUMPY\1\0"}, "odd.npy: cannot be read"),
    ({"00000_tokens.ds": HALF}, "no suffix that names a format; data.format=npy or bin"),
    ({"ids.bin.gz": b"\x1f\x8b"}, "must be ids that can be mapped: unpack it"),
]


@pytest.mark.parametrize(("contents", "words"), UNLIKE_IDS)
def test_a_file_that_is_no_array_is_refused(tmp_path, contents, words):
    paths = files(tmp_path / "data", contents)
    (path,) = [path for path in paths if not path.endswith((".json", ".idx"))]
    with pytest.raises(UserError, match=words):
        ids_of(path, tmp_path, dtype="uint16")


def test_raw_ids_need_their_type(tmp_path):
    paths = files(tmp_path, {"odd.bin": b"\1\2\3"})
    words = "data.dtype=None: must be uint8, .* for odd.bin"
    with pytest.raises(UserError, match=words):
        ids_of(paths, tmp_path)


NO_LISTS = ["[[[1, 2], [3, 4]]]", "5", "[1, -4294967289]", '["a"]', "[1.5]", "[2147483648]"]


@pytest.mark.parametrize("value", NO_LISTS)
def test_a_record_without_a_list_of_ids_is_refused(tmp_path, value):
    lines = f'{{"input_ids": [1, 2]}}\n{{"input_ids": {value}}}\n'
    with pytest.raises(OptionError, match="line 2 cannot be read"):
        ids_of(files(tmp_path, {"a.jsonl": lines}), tmp_path)


MISFITS = [
    write_llm_c,
    write_megatron,
    lambda folder: Path(saved(folder, FEW)),
]


@pytest.mark.parametrize("write", MISFITS)
def test_files_that_do_not_fit_their_header_are_refused(tmp_path, write):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + b"xxxx")
    words = "must have the 1,000 ids of its header or index, and no more"
    with pytest.raises(OptionError, match=words):
        ids_of(str(path), tmp_path)


def test_a_type_belongs_to_its_file():
    """A run of 16-bit ids scores a file of 32 bits by its own type, and needs one for a raw file."""
    run = FileData(
        "file",
        "ids",
        path="a.bin",
        dtype="uint16",
        column="tokens",
    )
    plain = file_data(run, "b.npy", "ids")
    assert (plain.dtype, plain.column) == (None, None)
    other = file_data(
        run,
        {"path": "b.bin", "dtype": "int32"},
        "ids",
    )
    assert (other.path, other.dtype) == ("b.bin", "int32")
    with pytest.raises(OptionError, match="may have path, dtype, format, column"):
        file_data(run, {"path": "b.bin", "type": "int32"}, "ids")


PIECES = [
    ("<unk>", 0.0),
    ("▁a", -1.0),
    ("b", -2.0),
]
UNIGRAM = Tokenizer(models.Unigram(PIECES, unk_id=0)).to_str()
NAMES = [
    ("names.txt", "note 0\nnote 1\nnote 2\n", ["note 0", "note 1", "note 2"]),
    ("vocab.json", '{"model": 1, "version": 0}', ["version", "model"]),
    ("tokenizer.json", UNIGRAM, ["<unk>", "▁a", "b"]),
]


@pytest.mark.parametrize(("name", "content", "expected"), NAMES)
def test_names_of_ids(tmp_path, name, content, expected):
    (path,) = files(tmp_path, {name: content})
    names = names_of_ids(path)
    assert [names[number] for number in sorted(names)] == expected
