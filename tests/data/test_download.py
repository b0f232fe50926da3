"""Downloads: a corpus is fetched once, and a failure names its cause and leaves no partial file."""

import hashlib
import io
import shutil
import socket
import zipfile
from pathlib import Path

import pytest

from txl_lightning.config.schemas import DataConfig, Enwik8Data, data_class
from txl_lightning.data import published_corpora as download
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.errors import UserError

CONTENT = b"some text\n" * 1000


ADDRESSES = [address for address, *_ in download.ADDRESSES.values()]


def zipped(name: str, content: bytes = CONTENT) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No official address can be reached."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for corpus, (_, *more) in download.ADDRESSES.items():
        monkeypatch.setitem(download.ADDRESSES, corpus, (f"{closed}/archive.zip", *more))
    monkeypatch.setenv("HF_ENDPOINT", closed)
    monkeypatch.delenv("TXL_DATA", raising=False)


def serve(monkeypatch: pytest.MonkeyPatch, corpus: str, archive: Path, content: bytes) -> None:
    archive.parent.mkdir()
    archive.write_bytes(content)
    monkeypatch.setitem(download.ADDRESSES, corpus, (archive.as_uri(), *download.ADDRESSES[corpus][1:]))


def test_a_corpus_that_is_not_there_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made/simple-examples/data"
    folder.mkdir(parents=True)
    for split in SPLITS:
        (folder / f"ptb.{split}.txt").write_bytes(b" a b <unk> \n b a \n" * 9)
        # "characters" of the archive are words and spaces written apart, as in the real one.
        (folder / f"ptb.char.{split}.txt").write_bytes(b"a _ b \n" * 9)
    content = Path(shutil.make_archive(str(tmp_path / "made/packed"), "gztar", tmp_path / "made")).read_bytes()
    serve(monkeypatch, "ptb", tmp_path / "server/simple-examples.tgz", content)
    config = DataConfig(name="ptb", level="char", cache_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"simple-examples.tgz has the md5 .*, expected is 30177ea32e27c525793142"):
        load_corpus(config)
    monkeypatch.setitem(download.CHECKSUMS, "simple-examples.tgz", f"sha256:{hashlib.sha256(content).hexdigest()}")
    corpus = load_corpus(config)
    assert corpus.name == "ptb, characters"
    assert corpus.vocabulary.decode(corpus.splits["train"][:8]) == "a b\na b\n"
    names = sorted(f"ptb.{kind}{split}.txt" for kind in ("", "char.") for split in SPLITS)
    assert sorted(path.name for path in (tmp_path / "downloads" / "ptb").iterdir()) == names
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["ptb"]
    shutil.rmtree(tmp_path / "server")
    assert load_corpus(config).checksum == corpus.checksum


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped("enwik8"), "enwik8 has the md5 .*, expected is a1fa5ffddb56f4953e226637dabbb36a"),
        (zipped("other"), "enwik8.zip lacks enwik8"),
        (zipped("enwik8")[:-30], "enwik8.zip gave a damaged archive"),
        (zipped("../../enwik8"), "enwik8 has the md5"),  # its folders are ignored
        (zipped("enwik8", bytes(100_000_001)), "enwik8 is larger than expected"),  # 97 kB packed
        (b"<html>please log in", "enwik8.zip gave a damaged archive"),
    ],
)
def test_a_bad_archive_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    serve(monkeypatch, "enwik8", tmp_path / "server/enwik8.zip", content)
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=words):
        load_corpus(Enwik8Data(name="enwik8", root=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache")))
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("name", ["enwik8", "text8", "wikitext-2", "ptb", "lm1b", "wikipedia-2015"])
def test_without_network_or_copy_one_line_names_the_files_and_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    level = {"enwik8": "byte", "text8": "char", "wikipedia-2015": "byte"}.get(name, "word")
    words = rf"data={name}: not in .*{name}, and .*; put .* data.root or TXL_DATA"
    with pytest.raises(UserError, match=words) as error:
        load_corpus(data_class(name)(name=name, level=level, cache_dir=str(tmp_path / "cache")))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_wikitext_comes_through_datasets_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    rows = {"train": ["", " = A = \n", " the a \n"], "validation": [" a \n"], "test": ["", " the \n"]}
    made = {split: datasets.Dataset.from_dict({"text": text}) for split, text in rows.items()}
    known = {("Salesforce/wikitext", "wikitext-2-v1"): made, ("Salesforce/wikitext", "wikitext-103-v1"): {}}
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *given, **options: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, revision: known[(*given, revision)[:2]])
    download.fetch("wikitext-2", tmp_path / "wikitext-2")
    contents = [(tmp_path / f"wikitext-2/wiki.{split}.tokens").read_text() for split in SPLITS]
    assert contents == ["\n = A = \n the a \n", " a \n", "\n the \n"]
    with pytest.raises(KeyError):
        download.fetch("wikitext-103", tmp_path / "wikitext-103")
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext-2"], "nothing half-written"


def test_addresses_are_encrypted_and_wikitext_has_a_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(address.startswith("https://") for address in ADDRESSES)
    import datasets
    import huggingface_hub

    asked: list[object] = []
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, revision, **__: asked.append(revision))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, revision: asked.append(revision))
    with pytest.raises(TypeError):
        download.from_datasets("wikitext-2", tmp_path)
    assert asked == [download.REVISION] * 2
    assert len(download.REVISION) == 40
