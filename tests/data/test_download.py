"""Failing downloads: each gives an error that names the cause, and leaves no partial file."""

import hashlib
import http.server
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from txl_lightning import files
from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import download
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.errors import UserError

CONTENT = b"some text\n" * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; a name that begins with `cut-` stops in the middle, `html` is a page."""

    files: dict[str, bytes]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.send_error(405)

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if name == "page" else "application/zip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if name.startswith("cut-") else content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.files = {
        "good": CONTENT,
        "cut-good": CONTENT,
        "page": b"please log in",
        "disguised": b"\n<!DOCTYPE HTML><title>captcha</title>",
        "changed": b"S" + CONTENT[1:],
    }
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_good_download_is_whole(server: Server, tmp_path: Path) -> None:
    download.download(f"{server.address}/good", tmp_path / "new" / "file", f"md5:{MD5}")
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize("before", [None, b"what was there before"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut-good", r"stopped after 5,000 of 10,000 bytes \(truncated download\)"),
        ("page", "gave an HTML page instead of the file"),
        ("disguised", "gave an HTML page instead of the file"),
        ("changed", f"has the md5 {hashlib.md5(b'S' + CONTENT[1:]).hexdigest()}, expected is {MD5}"),
        ("missing", "answered 404 Not Found"),
    ],
)
def test_a_bad_download_is_named_and_leaves_nothing(
    server: Server, tmp_path: Path, name: str, words: str, before: bytes | None
) -> None:
    target = tmp_path / "file"
    if before is not None:
        target.write_bytes(before)
    with pytest.raises(UserError, match=words):
        download.download(f"{server.address}/{name}", target, f"md5:{MD5}")
    assert (target.read_bytes() if target.exists() else None) == before
    assert len(list(tmp_path.iterdir())) == (before is not None)


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_no_network_and_a_full_disk_are_named(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot be reached \(.*refused"):
        download.download(f"{closed_port()}/good", tmp_path / "file")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"file cannot be written \(No space left on device\)"):
        download.download(f"{server.address}/good", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_an_answer_of_any_kind_is_an_answer(server: Server) -> None:
    download.require_answer(server.address)
    with pytest.raises(UserError, match="cannot be reached"):
        download.require_answer(closed_port())


def ptb_archive() -> dict[str, bytes]:
    # "characters" of the archive are words and spaces written apart, as in the real one.
    words = {f"./simple-examples/data/ptb.{split}.txt": b" a b <unk> \n b a \n" * 9 for split in SPLITS}
    apart = {f"./simple-examples/data/ptb.char.{split}.txt": b"a _ b \n" * 9 for split in SPLITS}
    return words | apart


def serve(monkeypatch: pytest.MonkeyPatch, server: Server, corpus: str, name: str, content: bytes) -> None:
    server.files[name] = content
    monkeypatch.setitem(download.ADDRESSES, corpus, f"{server.address}/{name}")
    monkeypatch.setitem(download.ARCHIVES, corpus, f"sha256:{hashlib.sha256(content).hexdigest()}")


def test_a_corpus_that_is_not_there_is_fetched_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TXL_DATA", raising=False)
    serve(monkeypatch, server, "ptb", "simple-examples.tgz", tarred(ptb_archive()))
    config = DataConfig(name="ptb", level="char", cache_dir=str(tmp_path))
    corpus = load_corpus(config)
    assert corpus.name == "ptb, characters"
    assert corpus.vocabulary.decode(corpus.splits["train"][:8]) == "a b\na b\n"
    assert sorted(path.name for path in (tmp_path / "downloads" / "ptb").iterdir()) == sorted(
        [f"{split}.txt" for split in SPLITS] + [f"ptb.char.{split}.txt" for split in SPLITS]
    )
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["ptb"]
    server.files.clear()
    assert load_corpus(config).checksum == corpus.checksum
    with pytest.raises(UserError, match="ptb: the preparation has a vocabulary of 4 where 10,000 are published"):
        load_corpus(DataConfig(name="ptb", level="word", cache_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped(enwik8=b"S" + CONTENT[1:]), "enwik8 in enwik8.zip has the md5 .* expected is"),
        (zipped(other=CONTENT), "enwik8.zip lacks enwik8"),
        (zipped(enwik8=CONTENT)[:-30], "enwik8.zip is a damaged archive"),
    ],
)
def test_a_bad_archive_is_named_and_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    serve(monkeypatch, server, "enwik8", "enwik8.zip", content)
    monkeypatch.setitem(download.CONTENTS, "enwik8", f"md5:{MD5}")
    with pytest.raises(UserError, match=words):
        load_corpus(DataConfig(name="enwik8", root=str(tmp_path), cache_dir=str(tmp_path / "cache")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["enwik8", "text8", "wikitext-2", "ptb", "lm1b", "wikipedia-2015"])
def test_without_network_or_copy_one_line_names_the_files_and_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for corpus in download.ADDRESSES:
        monkeypatch.setitem(download.ADDRESSES, corpus, f"{closed_port()}/archive.zip")
    monkeypatch.setenv("HF_ENDPOINT", closed_port())
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    level = {"enwik8": "byte", "text8": "char", "wikipedia-2015": "byte"}.get(name, "word")
    with pytest.raises(
        UserError, match=rf"data={name}: not in .*{name}, and .*; put .* data.root or TXL_DATA"
    ) as error:
        load_corpus(DataConfig(name=name, level=level, cache_dir=str(tmp_path / "cache")))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_wikitext_comes_through_datasets_line_by_line(tmp_path: Path) -> None:
    import datasets

    rows = {"train": ["", " = A = \n", " the a \n"], "validation": [" a \n"], "test": ["", " the \n"]}
    asked = []

    def load_dataset(path: str, name: str) -> dict[str, datasets.Dataset]:
        asked.append((path, name))
        return {split: datasets.Dataset.from_dict({"text": text}) for split, text in rows.items()}

    download.from_datasets("wikitext-2", tmp_path / "wikitext-2", load_dataset)
    assert asked == [("Salesforce/wikitext", "wikitext-2-v1")]
    contents = {path.name: path.read_text() for path in (tmp_path / "wikitext-2").iterdir()}
    assert contents == {
        "wiki.train.tokens": "\n = A = \n the a \n",
        "wiki.valid.tokens": " a \n",
        "wiki.test.tokens": "\n the \n",
    }

    del rows["test"]
    with pytest.raises(KeyError):
        download.from_datasets("wikitext-103", tmp_path / "wikitext-103", load_dataset)
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext-2"], "nothing half-written"
