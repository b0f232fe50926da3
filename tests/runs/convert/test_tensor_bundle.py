"""TensorFlow's checkpoint format: real files, files of a small writer, and damaged ones."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.runs.convert.bundle_writer import message, number, slow_crc32c, table, write_bundle
from txl_lightning.errors import UserError
from txl_lightning.runs.convert.tensorflow_checkpoint import LONGEST, TensorBundle, crc32c, masked, read_table

REFERENCES = sorted((Path(__file__).parents[2] / "reference/tensorflow").iterdir())


def read_all(prefix: Path) -> dict[str, np.ndarray]:
    bundle = TensorBundle(prefix)
    return {name: bundle.read(name) for name in bundle.variables}


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_files_of_tensorflow_are_read_bit_for_bit(reference: Path) -> None:
    found, expected = read_all(reference / "model.ckpt-0"), dict(np.load(reference / "weights.npz"))
    assert found.pop("global_step").shape == ()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(("n_shards", "per_block"), [(1, 100), (1, 1), (3, 2), (12, 7)])
def test_every_type_in_many_blocks_and_shards(tmp_path: Path, n_shards: int, per_block: int) -> None:
    random = np.random.default_rng(0)
    dtypes = ["f4", "f8", "i4", "u1", "i2", "i1", "i8", "b1", "u2", "f2"]
    variables = {f"scope/of/{t}/{n}": (random.normal(size=(n, 3)) * 9).astype(f"<{t}") for t in dtypes for n in (0, 2)}
    variables |= {"scalar": np.array(7, np.int64), "brain": random.normal(size=(4, 5, 2)).astype("<f4")}
    write_bundle(tmp_path / "model", variables, n_shards, per_block, bfloat16=("brain",))
    found = read_all(tmp_path / "model")
    variables["brain"] = (variables["brain"].view("<u4") & 0xFFFF0000).view("<f4")
    assert found.keys() == variables.keys()
    for name, array in variables.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_checksums_are_those_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 and others
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0
    assert masked(crc32c(b"foo")) != crc32c(b"foo")


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 1000, 70_003, 200_000])
def test_checksums_of_any_length(n: int) -> None:
    content = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8).tobytes()
    assert crc32c(content) == slow_crc32c(content)


@pytest.mark.parametrize("n", [LONGEST, LONGEST + 1, 2 * LONGEST + 99])
def test_checksums_of_long_data_see_every_byte(n: int) -> None:
    content = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    whole = crc32c(content)
    assert crc32c(np.concatenate([content, np.frombuffer(whole.to_bytes(4, "little"), np.uint8)])) == 0x48674BC7
    for place in (0, 3, n // 2, n - 1):
        content[place] ^= 1
        assert crc32c(content) != whole
        content[place] ^= 1


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Prefix of a copy of a reference that a test may damage."""
    for path in REFERENCES[0].glob("model.ckpt-0.*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path / "model.ckpt-0"


def change(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_changed_byte_of_the_data_is_noticed(copy: Path) -> None:
    data = copy.with_name("model.ckpt-0.data-00000-of-00001")
    for place in range(0, data.stat().st_size, 2999):
        change(data, place)
        with pytest.raises(UserError, match=r"data-00000-of-00001: .* is damaged: its bytes have another checksum"):
            read_all(copy)
        change(data, place)
    read_all(copy)


def test_a_changed_byte_of_the_index_is_noticed(copy: Path) -> None:
    index, expected = copy.with_name("model.ckpt-0.index"), read_all(copy)
    places, refused = range(0, index.stat().st_size, 11), 0
    for place in places:
        change(index, place)
        try:
            found = read_all(copy)
        except UserError:
            refused += 1
        else:  # padding and the block of metadata are not read
            assert found.keys() == expected.keys()
            assert all((found[name] == array).all() for name, array in expected.items())
        change(index, place)
    assert refused > 0.9 * len(places)


def test_files_that_were_cut_short_or_are_missing(copy: Path) -> None:
    index, data = copy.with_name("model.ckpt-0.index"), copy.with_name("model.ckpt-0.data-00000-of-00001")
    content = index.read_bytes()
    for n in range(0, len(content), 13):
        index.write_bytes(content[:n])
        with pytest.raises(UserError, match=r"index: is not an index of a TensorFlow checkpoint, or was cut short"):
            TensorBundle(copy)
    index.write_bytes(content)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"was cut off: the file is too short"):
        read_all(copy)
    data.unlink()
    with pytest.raises(UserError, match=r"data-00000-of-00001: cannot be read"):
        read_all(copy)
    index.unlink()
    with pytest.raises(UserError, match=r"model.ckpt-0.index: cannot be read"):
        TensorBundle(copy)


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    prefix = tmp_path / "model"
    write_bundle(prefix, {"x": np.zeros(2, "<f4")}, header=number(1, 1) + number(2, 1))
    with pytest.raises(UserError, match="big-endian"):
        TensorBundle(prefix)
    Path(f"{prefix}.index").write_bytes(table([(b"", number(1, 1))], 5, compression=1))
    with pytest.raises(UserError, match="is compressed"):
        TensorBundle(prefix)
    cases = {
        "DataType 7": number(1, 7),
        "in slices": number(1, 1) + message(7, b""),
        "has 4 bytes, which is not its shape": number(1, 1) + message(2, message(2, number(1, 5))) + number(5, 4),
    }
    for problem, entry in cases.items():
        Path(f"{prefix}.index").write_bytes(table([(b"", number(1, 1)), (b"x", entry)], 5))
        with pytest.raises(UserError, match=problem):
            TensorBundle(prefix).read("x")
    for entry in (number(2, 1 << 60), message(1, b"x"), b"\x0c", b"\xff" * 12):
        Path(f"{prefix}.index").write_bytes(table([(b"", number(1, 1)), (b"x", entry)], 5))
        with pytest.raises(UserError, match=r"model.index: is (not an index|damaged)"):
            TensorBundle(prefix)


def test_a_table_of_many_keys() -> None:
    entries = [(f"key/{i // 10}/{i:04d}".encode(), bytes([i % 256]) * (i % 40)) for i in range(300)]
    assert list(read_table(table(sorted(entries), per_block=9))) == sorted(entries)
