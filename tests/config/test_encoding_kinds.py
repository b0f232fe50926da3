"""Properties of encodings without their modules."""

import txl_lightning.model.encodings  # noqa: F401 - registers the encodings
from txl_lightning.config.architecture import EncodingKind, kind_named


def test_the_kinds_of_the_package_are_registered() -> None:
    assert kind_named("relative") == EncodingKind("abcd", projects=True)
    assert kind_named("shaw") == EncodingKind("abcd", table="distances")
    assert kind_named("absolute") == EncodingKind("a", absolute=True)
    assert kind_named("rope") == EncodingKind("a", rotates=True)
    assert kind_named("alibi") == EncodingKind("ad", extrapolates=True)
    assert kind_named("none") == EncodingKind("a", extrapolates=True)
    assert kind_named("al_rfou") == EncodingKind("a", absolute=True, table="positions")
