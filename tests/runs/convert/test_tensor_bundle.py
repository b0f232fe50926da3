"""TensorFlow's checkpoint format: real files, files of a small writer, and damaged ones."""

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.runs.convert.bundle_writer import field, table, write_bundle
from txl_lightning.errors import UserError
from txl_lightning.runs.convert.tensorflow_checkpoint import PART, crc32c, read_variables

REFERENCES = sorted((Path(__file__).parents[2] / "reference/tensorflow").iterdir())


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_files_of_tensorflow_are_read_bit_for_bit(reference: Path) -> None:
    found, expected = read_variables(reference / "model.ckpt-0")[0], dict(np.load(reference / "weights.npz"))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(("n_shards", "per_block"), [(1, 100), (1, 1), (3, 2), (12, 7)])
def test_every_type_in_many_blocks_and_shards(tmp_path: Path, n_shards: int, per_block: int) -> None:
    normal, variables = np.random.default_rng(0).normal, {"transformer/scalar": np.array(7, np.int64)}
    for kind, n in product(("f4", "f8", "i4", "i8", "f2"), (0, 2)):
        variables[f"transformer/{kind}/{n}"] = (normal(size=(n, 3)) * 9).astype(f"<{kind}")
    variables["transformer/brain"] = normal(size=(4, 5, 2)).astype("<f4")
    write_bundle(tmp_path / "model", variables, n_shards, per_block, bfloat16="transformer/brain")
    found = read_variables(tmp_path / "model")[0]
    variables["transformer/brain"] = (variables["transformer/brain"].view("<u4") & 0xFFFF0000).view("<f4")
    assert found.keys() == variables.keys()
    for name, array in variables.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_checksums_are_those_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 and others
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, PART - 1, PART, PART + 1, 3 * PART + 7, 200_000])
def test_checksums_of_any_length_see_every_byte(n: int) -> None:
    """The checksum of data with its checksum behind it is that of four zero bytes, whatever the data."""
    content = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    whole = crc32c(content)
    assert crc32c(content.tobytes() + whole.to_bytes(4, "little")) == 0x48674BC7
    for place in (0, n // 2, n - 1):
        content[place] ^= 1
        assert crc32c(content) != whole
        content[place] ^= 1


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Prefix of a copy of a reference that a test may damage."""
    for path in REFERENCES[0].glob("model.ckpt-0.*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path / "model.ckpt-0"


@pytest.mark.slow
def test_a_changed_byte_is_noticed(copy: Path) -> None:
    index, data, expected = Path(f"{copy}.index"), Path(f"{copy}.data-00000-of-00001"), read_variables(copy)[0]
    for path, step in ((data, 2999), (index, 11)):
        content, refused, places = path.read_bytes(), 0, range(step, path.stat().st_size, step)
        for place in places:
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            try:
                found = read_variables(copy)[0]
            except UserError:
                refused += 1
            else:  # padding and the block of metadata are not read
                assert all((found[name] == array).all() for name, array in expected.items())
        path.write_bytes(content)
        assert refused > (0.9 if path == index else 0.999) * len(places)


def test_files_that_were_cut_short_are_missing_or_not_supported_are_named(copy: Path) -> None:
    index, data = Path(f"{copy}.index"), Path(f"{copy}.data-00000-of-00001")

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            read_variables(copy)[0]

    content = index.read_bytes()
    for n in range(0, len(content), 13):
        index.write_bytes(content[:n])
        refused(r"ckpt-0.index: is not an index of a TensorFlow checkpoint, or was cut short")
    index.write_bytes(content)
    data.write_bytes(data.read_bytes()[:-1])
    refused(r"was cut off: the file is too short")
    data.unlink()
    refused(r"data-00000-of-00001: cannot be read")
    index.write_bytes(table([(b"", field(1, 1)), (b"transformer/x", field(1, 7))]))
    refused(r"transformer/x is of a type that is not supported \(DataType 7\)")
    index.write_bytes(table([(b"", field(1, 1)), (b"x", b"\x0c")]))
    refused(r"ckpt-0.index: is not of a TensorFlow checkpoint$")
    index.write_bytes(table([(b"", field(1, 1))], compression=1))
    refused("is compressed")
    index.unlink()
    refused(r"ckpt-0.index: cannot be read")
