"""Files of the field's tools: read as their writer meant them, or refused by name."""

import base64
import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table as write_parquet
from tokenizers import Tokenizer, models

from tests.data.helpers import corpus_of, documents_of, files, text_of
from txl_lightning.config.schemas import FileData, file_data
from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus, load_corpus
from txl_lightning.data.names import names_of_ids
from txl_lightning.data.subwords import train_byte_pairs
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError

random = np.random.default_rng(1)
DOCUMENTS = [random.integers(0, 2_000, size=n).astype(np.uint16) for n in (70, 300, 1, 29, 600)]
IDS = np.concatenate(DOCUMENTS)
STARTS = np.cumsum([0, *map(len, DOCUMENTS)])[:-1].tolist()
TEXTS = [f"record {n}, with a comma; é\n" + "and\ta line\n" * (n % 3) for n in range(40)]


def read(path: Any, folder: Path, level: str, **options: Any) -> Corpus:
    """Read files as one split."""
    config = FileData(name="file", path=str(path), level=level, cache_dir=str(folder / "cache"), **options)
    subwords = Vocabulary.of_tokenizer(train_byte_pairs(TEXTS, 300))
    return load_corpus(config, {"bpe": subwords, "ids": None}.get(level, Vocabulary("byte")), whole=True)


def indexed(folder: Path, dtype: str, code: int, of_megatron: bool) -> Path:
    """Write what Megatron's and fairseq's builders of indexed datasets do: `.bin`, and `.idx` with their layouts."""
    ids = IDS.astype(dtype)
    ids.tofile(folder / "corpus_text_document.bin")
    lengths = np.array([len(document) for document in DOCUMENTS], np.int32)
    pointers = (np.cumsum([0, *lengths[:-1]]) * ids.itemsize).astype(np.int64)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, len(lengths))
    documents = np.arange(len(lengths) + 1, dtype=np.int64)
    more = struct.pack("<Q", len(documents)) if of_megatron else b""
    tail = documents.tobytes() if of_megatron else b""
    (folder / "corpus_text_document.idx").write_bytes(head + more + lengths.tobytes() + pointers.tobytes() + tail)
    return folder / "corpus_text_document.bin"


def llm_c(folder: Path, magic: int, dtype: str) -> Path:
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(IDS)
    (folder / "train.bin").write_bytes(header.tobytes() + IDS.astype(dtype).tobytes())
    return folder / "train.bin"


def datatrove(folder: Path, dtype: str) -> Path:
    IDS.astype(dtype).tofile(folder / "00000_tokens.ds")
    np.cumsum([*map(len, DOCUMENTS)]).astype(np.uint64).tofile(folder / "00000_tokens.ds.index")
    (folder / "00000_tokens.ds.metadata").write_text("gpt2|2\n1000\n1 K")
    return folder / "00000_tokens.ds"


LISTS = [document.tolist() for document in DOCUMENTS]


def lists(write: Callable[[pyarrow.Table, Path], Any], name: str, kind: Any) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        column = pyarrow.array(LISTS, pyarrow.list_(kind))
        write(pyarrow.table({"id": list(range(len(LISTS))), "input_ids": column}), folder / name)
        return folder / name

    return written


def put(folder: Path, name: str, content: str | bytes) -> Path:
    return Path(*files(folder, {name: content}))


def stream(table: pyarrow.Table, path: Path) -> None:
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


OF_IDS: dict[str, Callable[[Path], Path]] = {
    "Megatron int32": lambda folder: indexed(folder, "int32", 4, True),
    "Megatron uint16 by its prefix": lambda folder: indexed(folder, "uint16", 8, True).with_suffix(""),
    "fairseq int64 by its index": lambda folder: indexed(folder, "int64", 5, False).with_suffix(".idx"),
    "fairseq uint16": lambda folder: indexed(folder, "uint16", 8, False),
    "Megatron in a folder": lambda folder: indexed(folder, "int32", 4, True).parent,
    "datatrove": lambda folder: datatrove(folder, "uint16"),
    "datatrove of four bytes": lambda folder: datatrove(folder, "uint32"),
    "Parquet": lists(write_parquet, "a.parquet", pyarrow.int32()),
    "Parquet by its column": lists(write_parquet, "a.parquet", pyarrow.int64()),
    "Feather": lists(write_feather, "a.arrow", pyarrow.uint16()),
    "Arrow stream": lists(stream, "a.arrow", pyarrow.int32()),
    "JSON lines": lambda folder: put(folder, "a.json", "".join(f'{{"n": 1, "input_ids": {ids}}}\n' for ids in LISTS)),
    "JSON of MidiTok": lambda folder: put(folder, "a.json", json.dumps({"ids": LISTS, "programs": []})),
}
WITHOUT_DOCUMENTS: dict[str, Callable[[Path], Path]] = {
    "llm.c": lambda folder: llm_c(folder, 20240520, "uint16"),
    "llm.c for Llama 3": lambda folder: llm_c(folder, 20240801, "uint32"),
    "raw .npy of OLMo": lambda folder: put(folder, "part-0.npy", IDS.tobytes()),
}
WRITERS = {**OF_IDS, **WITHOUT_DOCUMENTS}


@pytest.mark.parametrize("name", WRITERS)
def test_ids_and_documents_are_those_of_the_writer(tmp_path: Path, name: str) -> None:
    options = {"Parquet by its column": {"column": "input_ids"}, "raw .npy of OLMo": {"dtype": "uint16"}}.get(name, {})
    (tmp_path / "data").mkdir()
    corpus = read(WRITERS[name](tmp_path / "data"), tmp_path, "ids", **options)
    assert np.asarray(corpus.splits[WHOLE]).tolist() == IDS.tolist()
    assert corpus.documents[WHOLE].tolist() == (STARTS if name in OF_IDS else [0])
    assert len(corpus.vocabulary) == IDS.max() + 1
    cut = corpus_of(str(tmp_path / "data"), tmp_path, name in OF_IDS, level="ids", **options)
    joined = np.concatenate([np.asarray(cut.splits[split]) for split in SPLITS])
    assert np.maximum(joined, ~joined).tolist() == IDS.tolist()
    assert [len(cut.splits[split]) for split in SPLITS] == [900, 50, 50]


def csv_of(delimiter: str) -> bytes:
    quoted = (text.replace('"', '""') for text in TEXTS)
    rows = [delimiter.join(("id", "text")), *(f'{n}{delimiter}"{text}"' for n, text in enumerate(quoted))]
    return "\n".join(rows).encode()


def tar_of(contents: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as opened:
        for name, content in contents.items():
            data = content.encode("latin-1" if name.endswith("jpg") else "utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            opened.addfile(info, io.BytesIO(data))
    return held.getvalue()


def tar(kind: str) -> bytes:
    contents = [json.dumps({"text": text}) if kind == "json" else text for text in TEXTS]
    samples = enumerate(zip(contents, ["\xff\xd8"] * len(contents), strict=True))
    return tar_of(
        {f"samples/{n:04d}.{end}": one for n, of in samples for end, one in zip((kind, "jpg"), of, strict=True)}
    )


def skippable(content: bytes) -> bytes:
    """Begin with a frame to skip, and have two more, as pzstd writes."""
    half = len(content) // 2
    packed = (pyarrow.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:]))
    return b"\x50\x2a\x4d\x18\x04\0\0\0" + bytes(4) + b"".join(packed)


def parquet_of(kind: Any, texts: list[str] = TEXTS) -> bytes:
    buffer, column = io.BytesIO(), pyarrow.array(texts, pyarrow.string()).cast(kind)
    write_parquet(pyarrow.table({"url": ["example.org"] * len(texts), "text": column}), buffer, row_group_size=7)
    return buffer.getvalue()


RECORDS = [{"url": "http://example.org", "text": text, "score": float("nan")} for text in TEXTS]
LINES = "".join(f"{json.dumps(record)}\n" for record in RECORDS).encode()
DICTIONARY = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
OF_TEXT: dict[str, tuple[str, Callable[[], bytes]]] = {
    "C4": ("c4-train.00000-of-01024.json.gz", lambda: gzip.compress(LINES)),
    "Dolma, members": ("cc_en_0000.json.gz", lambda: gzip.compress(LINES[:999]) + gzip.compress(LINES[999:])),
    "WikiExtractor": ("wiki_00", lambda: LINES),
    "a list": ("records.json", lambda: json.dumps([{"text": text} for text in TEXTS], indent=1).encode()),
    "pzstd": ("a.jsonl.zst", lambda: skippable(LINES)),
    "bzip2": ("a.jsonl.bz2", lambda: bz2.compress(LINES)),
    "CSV": ("a.csv", lambda: csv_of(",")),
    "CSV with semicolons": ("a.csv", lambda: csv_of(";")),
    "TSV": ("a.tsv", lambda: csv_of("\t")),
    "WebDataset": ("a-000.tar", lambda: tar("txt")),
    "WebDataset with JSON": ("a-000.tar.gz", lambda: gzip.compress(tar("json"))),
    "Parquet": ("a.parquet", lambda: parquet_of(pyarrow.large_string())),
    "Parquet with a dictionary": ("a.parquet", lambda: parquet_of(DICTIONARY)),
}


@pytest.mark.parametrize("level", ["byte", "bpe"])
@pytest.mark.parametrize("name", OF_TEXT)
def test_records_are_documents(tmp_path: Path, name: str, level: str) -> None:
    file, content = OF_TEXT[name]
    found = documents_of(read(put(tmp_path, file, content()), tmp_path, level))
    assert found == [text if text.endswith("\n") else f"{text}\n" for text in TEXTS]


def test_a_long_first_record_is_one(tmp_path: Path) -> None:
    content = "".join(json.dumps({"title": "x", "text": text}) + "\n" for text in ("word " * 30_000, "b", "c"))
    path = put(tmp_path, "dump-00", content)
    assert documents_of(read(path, tmp_path, "byte")) == ["word " * 30_000 + "\n", "b\n", "c\n"]


def test_datasets_saved_to_disk_are_read_by_their_splits(tmp_path: Path) -> None:
    import datasets

    of_split = {"train": TEXTS[:30], "validation": TEXTS[30:35], "test": TEXTS[35:]}
    of_split_saved = {split: datasets.Dataset.from_dict({"text": texts}) for split, texts in of_split.items()}
    datasets.DatasetDict(of_split_saved).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved/train/cache-0123456789abcdef.arrow").write_bytes(b"\xff\xff\xff\xff of a map that was run")
    corpus = corpus_of(str(tmp_path / "saved"), tmp_path, level="byte")
    for split, texts in zip(SPLITS, of_split.values(), strict=True):
        assert "".join(documents_of(corpus, split)) == "".join(text.removesuffix("\n") + "\n" for text in texts)
    one = datasets.Dataset.from_dict({"tokens": LISTS, "text": ["x"] * len(LISTS)})
    one.save_to_disk(tmp_path / "one", num_shards=2)
    assert np.asarray(read(tmp_path / "one", tmp_path, "ids").splits[WHOLE]).tolist() == IDS.tolist()
    (tmp_path / "one/data-00001-of-00002.arrow").unlink()
    with pytest.raises(OptionError, match=r"data-00001-of-00002\.arrow cannot be read \(No such file"):
        read(tmp_path / "one", tmp_path, "ids")


def test_a_column_is_chosen_and_nulls_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = files(tmp_path, {"a.jsonl": '{"body": "a", "text": "x"}\n{"body": null}\n{"text": "y"}\n{"body": "b"}\n'})
    assert documents_of(read(path, tmp_path, "byte", column="body")) == ["a\n", "b\n"]
    assert "a.jsonl: 2 records have no body; left out" in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"data\.column=title: must be a column of .*a\.jsonl: body, text"):
        read(path, tmp_path, "byte", column="title")
    with pytest.raises(OptionError, match=r"data\.column=body: must be null for .*a\.txt: it is text, no table"):
        read(put(tmp_path, "a.txt", "text\n" * 9), tmp_path, "byte", column="body")
    with pytest.raises(OptionError, match=r"data\.column=None: .*\(data\.level=ids reads input_ids\)"):
        read(put(tmp_path, "b.jsonl", '{"input_ids": [1, 2]}\n{"input_ids": ["a"]}\n'), tmp_path, "byte")


def test_code_and_settings_in_json_stay_text(tmp_path: Path) -> None:
    content = {"package.json": '{\n  "name": "x",\n  "text": "y"\n}\n', "min.json": '{"version": 3, "names": []}\n'}
    for path, text in zip(files(tmp_path, content), content.values(), strict=True):
        assert text_of(corpus_of(path, tmp_path, level="byte")) == text


RECORD = b"\x0a\x0bsome example"
TFRECORD = (struct.pack("<QI", len(RECORD), 123) + RECORD + struct.pack("<I", 456)) * 9


NPY = io.BytesIO()
np.save(NPY, IDS)
NO_LISTS = ("[[[1, 2], [3, 4]]]", "5", "[1, -4294967289]", '["a"]', "[1.5]", "[2147483648]")
NO_LIST = r"record 2 cannot be read \(TypeError: must be (a list of )?ids"
PLUS_ONE = b"TNTIDX\0\0" + struct.pack("<QQ", 4, 4)  # an index of files that store every id plus one
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"index.json": b'{"shards": [], "version": 2}', "shard.00000.mds": bytes(400)}, "ids", "MosaicML streaming"),
    ({"index.json": b'{"shards": []}', "shard.00000.mds": bytes(400)}, "byte", "MosaicML streaming .MDS.: numpy.save"),
    ({"index.json": b'{"chunks": [], "config": {}}', "chunk-0-0.bin": bytes(400)}, "ids", "litdata: numpy.save"),
    ({"a.tfrecord": TFRECORD}, "ids", "not TFRecords: write the ids"),
    ({"a.bin": TFRECORD}, "uint16", "not TFRecords"),
    ({"a.h5": b"\x89HDF\r\n\x1a\n" + bytes(99)}, "ids", "not HDF5"),
    ({"a.parquet": b"PARE" + bytes(99) + b"PARE"}, "byte", "must be a text, not encrypted Parquet: write it without"),
    ({"a.parquet": b"PAR1" + bytes(99) + b"\xff" * 4 + b"PAR1"}, "byte", r"a\.parquet: cannot be read \(Arrow"),
    ({"book.pdf": b"%PDF-1.7 " + bytes(9_000), "README.md": b"text " * 99}, "byte", "book.pdf must be a text, not PDF"),
    ({"a.mid": b"MThd" + bytes(9_000), "list.csv": b"a,text\n1,x\n" * 9}, "char", "a.mid must be a text, not binary"),
    ({"a.jsonl": b'["a"]\n' * 9, "b.jsonl": b'["b"]\n'}, "char", "a.jsonl must be JSON lines or a list of records"),
    ({"a.txt": b"one two", "b.txt": b"three"}, "uint16", "must be ids, not text: save them with numpy.save"),
    ({"a.bin": b"this is text, not ids " * 99}, "uint16", "must be ids, not text"),
    ({"a.bin": IDS.tobytes(), "a.idx": PLUS_ONE}, "uint16", "not the older indexed dataset of fairseq: fairseq-prep"),
    ({"odd.bin": b"\1\2\3"}, "ids", "data.dtype=None: must be uint8, uint16, uint32, int32, int64 for odd.bin"),
    ({"text.npy": b"no array"}, "ids", "data.dtype=None: must be uint8"),
    ({"odd.npy": b"\x93NUMPY\1\0"}, "ids", "data.path=.*odd.npy: cannot be read"),
    ({"two.npy": NPY.getvalue() * 2}, "ids", "data.path=.*two.npy: must have one array, and no more"),
    ({"odd.bin": b"\0\2\3"}, "uint16", "data.path=.*odd.bin: cannot be read"),
    ({"notes.txt": b"1234"}, "uint16", "not digits of a text: save them with numpy.save"),
    ({"ids.bin": b"1 2 3 4 5 6 7 8\n" * 9}, "uint16", "not digits of a text: save them with numpy.save"),
    ({"ids.txt": b"\x01\x00\x02\x00"}, "uint16", "not binary: save them"),
    ({"ids.npz": b"PK\x03\x04" + bytes(60)}, "uint16", "not an archive: unpack it"),
    ({"ids.raw": gzip.compress(bytes(64), mtime=0)}, "uint16", "not compressed: unpack it"),
    *(({"a.jsonl": f'{{"input_ids": [1, 2]}}\n{{"input_ids": {ids}}}\n'.encode()}, "ids", NO_LIST) for ids in NO_LISTS),
]


MISFITS = [
    ("llm.c", lambda data: data + b"xx", r"must have the 1,000 ids of its header; it has 1,001"),
    ("Megatron int32", lambda data: data[:-4], r"must have the sequences of its \.idx one after the other, and no"),
    ("datatrove", lambda data: data[:-3], r"must have the 1,000 ids of its \.index"),
]


@pytest.mark.parametrize(("name", "damage", "words"), MISFITS)
def test_files_that_do_not_fit_their_header_are_refused(tmp_path: Path, name: str, damage: Any, words: str) -> None:
    path = WRITERS[name](tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(OptionError, match=words):
        read(path, tmp_path, "ids")


def test_tables_and_texts_are_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path / "c4", {"a.json.gz": gzip.compress(LINES * 9), "README.md": "about"})
    assert "about" not in text_of(corpus_of(str(tmp_path / "c4"), tmp_path, level="byte"))
    err = capsys.readouterr().err
    assert "README.md: left out, beside tables" in err
    assert "data.path=c4: JSON lines, column text; documents of each split: train " in err


def test_a_type_belongs_to_its_file() -> None:
    """A run of 16-bit ids scores a file of 32 bits by its own type, and needs one for a raw file."""
    run = FileData(name="file", path="a.bin", level="ids", dtype="uint16", column="tokens")
    assert (file_data(run, "b.npy", "ids").dtype, file_data(run, "b.npy", "ids").column) == (None, None)
    given = file_data(run, {"path": "b.bin", "dtype": "int32"}, "ids")
    assert (given.path, given.dtype) == ("b.bin", "int32")
    with pytest.raises(OptionError, match="may have path, dtype and column"):
        file_data(run, {"path": "b.bin", "type": "int32"}, "ids")


def test_ids_that_look_wrong_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    IDS.astype(np.uint32).tofile(tmp_path / "a.bin")
    read(tmp_path / "a.bin", tmp_path, "ids", dtype="uint16")
    assert "of 2,000 ids are 0; is the type of the ids right?" in capsys.readouterr().err
    np.save(tmp_path / "b.npy", np.append(np.arange(900) % 9, 60_000))
    read(tmp_path / "b.npy", tmp_path, "ids")
    assert "10 ids occur, and the largest is 60,000; is the type of the ids right?" in capsys.readouterr().err


def test_ids_that_change_while_they_are_read_end_the_command(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IDS)
    tokens = corpus_of(str(tmp_path / "a.npy"), tmp_path, level="ids").splits["train"]
    assert tokens.take([0, 1]).tolist() == IDS[:2].tolist()
    np.save(tmp_path / "a.npy", IDS[:100])
    with pytest.raises(UserError, match=r"a\.npy: has changed since it was opened; its ids must stay as they are"):
        tokens.take([999 - 200])


UNIGRAM = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], unk_id=0)).to_str()
OF_FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
NAMES: dict[str, tuple[str, str, list[str]]] = {
    "lines": ("names.txt", "note 0\nnote 1\nnote 2\n", ["note 0", "note 1", "note 2"]),
    "vocab.json": ("vocab.json", '{"b": 1, "a": 0}', ["a", "b"]),
    "tokenizer.json": ("tokenizer.json", UNIGRAM, ["<unk>", "▁a", "b"]),
    "SentencePiece": ("m.vocab", "<unk>\t0\n▁a\t-1.5\nb\t-2.25\n", ["<unk>", "▁a", "b"]),
    "tiktoken": ("r.tiktoken", f"{base64.b64encode(b'a').decode()} 0\n/w== 1\n", ["a", r"\xff"]),
    "fairseq": ("dict.txt", "the 120\nof 70\nmadeupword0000 0\n", [*OF_FAIRSEQ, "the", "of", "madeupword0000"]),
    "OpenFST": ("words.txt", "<eps> 0\nb 2\na 1\n", ["<eps>", "a", "b"]),
    "RWKV": ("rwkv.txt", "1 '\\x00' 1\n2 b'\\xff' 1\n3 ' a' 2\n", ["\x00", r"\xff", " a"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_ids(tmp_path: Path, name: str) -> None:
    file, content, expected = NAMES[name]
    found = names_of_ids(put(tmp_path, file, content))
    assert [found[number] for number in sorted(found)] == expected


SENTENCES = [f"日本語のテキスト {n % 9} です。 größer {'x ' * (n % 7)}" for n in range(400)]


@pytest.mark.parametrize("level", ["char", "word", "bpe"])
def test_cuts_between_splits_keep_records(tmp_path: Path, level: str) -> None:
    """A cut moves forward to a character or line; documents begin where the records do all the same."""
    (path,) = files(tmp_path, {"a.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in SENTENCES)})
    corpus = corpus_of(path, tmp_path, level=level, min_count=1 if level == "word" else None)
    lines = [" ".join(text.split()) if level == "word" else text for text in SENTENCES]
    assert text_of(corpus) == "".join(f"{line}\n" for line in lines)
    for split in SPLITS:
        first, *others = documents_of(corpus, split)
        assert {text.removesuffix("\n") for text in others[:-1]} <= {*lines}
        assert first.endswith("\n")


NO_TEXT = "must be a text, not "
UNREADABLE = [
    ("text.txt", b"%PDF-1.7 " + b"x" * 99, NO_TEXT + "PDF: pdftotext FILE"),
    ("text.txt", ("text" * 99).encode("utf-16"), NO_TEXT + "UTF-16: iconv -f UTF-16"),
    ("a.docx", b"PK\x03\x04" + b"x" * 99, NO_TEXT + "an office document: pandoc -t plain"),
    ("a.dat", b"a\0" * 99, NO_TEXT + "binary; data.level=byte reads any bytes"),
    ("latin.txt", "größer".encode("latin-1"), "latin.txt: not UTF-8 text .*: convert it .iconv -f LATIN1 -t UTF-8"),
    ("a.txt", gzip.compress(bytes(257) + b"ustar" + bytes(999), mtime=0), "cannot be read .ReadError: bad checksum"),
    ("a.gz", gzip.compress(b"text" * 999, mtime=0)[:-9], "a.gz: cannot be read"),
    ("a.xz", lzma.compress(b"text" * 999)[:-9], "a.xz: cannot be read"),
    ("a.tar", tar("txt")[:2048], "cannot be read .ReadError: its end is missing"),
    ("a.tar", tar("txt") + tar("txt"), "cannot be read .ReadError: its end is missing, or it has more after it"),
    ("a.tar", tar_of({"0.txt": "a", "1.txt": "b", "0.TXT": "c"}), "cannot be read .ReadError: it has a file twice"),
    ("a.tar", tar_of({"x/train/0.txt": "a", "x/test/0.txt": "b"}), "cannot be read .ReadError: its files are splits"),
    ("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", NO_TEXT + "a pointer of Git LFS: git"),
    ("a.jsonl", '{"text": "a"}\n{"text": 7}\n', r"a.jsonl: record 2 .*read \(TypeError: must be a text, not 7\)"),
    ("a.jsonl", '{"text": null}\n' * 9, "must have text: it is empty"),
    ("a.jsonl", '{"text": "a"}\nno json\n', r"a.jsonl: cannot be read \(ValueError: record 2: Expecting value"),
    ("a.jsonl", " \n", "must have records of JSON lines: it is empty"),
    ("a.jsonl", '["a", "word"]\n' * 9, "must be JSON lines or a list of records: name it .txt"),
    ("a.json", '{\n "text": "abc"\n}', "must be JSON lines or a list of records: name it .txt"),
    ("a.tsv", 'text\tn\n"Hello\t1\nSecond\t2\nhe said "so\t3\n"Again\t4\n', "record 1 cannot be read"),
    ("a.csv", "# made by x\nid,text\n1,abc\n", "must be a column of .*a.csv: # made by x"),
    ("a.csv", "id,text\n1,abc,d\n", r"record 1 cannot be read \(ValueError: 3 fields, the header has 2"),
]


REFUSED += [({name: content}, "char", words) for name, content, words in UNREADABLE]


@pytest.mark.parametrize(("contents", "level", "words"), REFUSED)
def test_what_nothing_reads_is_named(tmp_path: Path, contents: dict[str, bytes], level: str, words: str) -> None:
    first, *others = files(tmp_path / "data", contents)
    options = {"level": "ids", "dtype": level} if level == "uint16" else {"level": level}
    with pytest.raises(UserError, match=words) as error:
        corpus_of(str(tmp_path / "data") if others else first, tmp_path, **options)
    assert "\n" not in str(error.value)


def test_a_column_alone_is_a_table(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", 'text\n"First, ""q"""\nSecond\n')
    assert documents_of(read(path, tmp_path, "byte")) == ['First, "q"\n', "Second\n"]


def test_equal_bytes_are_read_by_the_delimiter_of_their_name(tmp_path: Path) -> None:
    assert documents_of(read(put(tmp_path, "a.csv", "text\na\tb\n"), tmp_path, "byte")) == ["a\tb\n"]
    with pytest.raises(OptionError, match="2 fields, the header has 1"):
        read(put(tmp_path, "a.tsv", "text\na\tb\n"), tmp_path, "byte")


def test_the_folder_of_a_megatron_training_is_its_tokens(tmp_path: Path) -> None:
    """Training writes `PREFIX/cache` with arrays of its own."""
    (tmp_path / "data").mkdir()
    prefix = indexed(tmp_path / "data", "int32", 4, True).with_suffix("")
    files(tmp_path / "data", {f"{prefix.name}/cache/0-GPTDataset-train-document_index.npy": b"\x93NUMPY"})
    for path in (prefix, prefix.parent):
        assert np.asarray(read(path, tmp_path, "ids").splits[WHOLE]).tolist() == IDS.tolist()


def test_empty_shards_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path / "shards", {"0.jsonl": LINES, "1.csv": "id,text\n", "2.jsonl": '{"text": null}\n', "_SUCCESS": "x"})
    assert len(documents_of(read(tmp_path / "shards", tmp_path, "byte"))) == len(TEXTS)
    assert "1.csv: none of its records has text; left out" in capsys.readouterr().err
