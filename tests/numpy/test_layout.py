from __future__ import annotations

import pytest

import cuplace
from cuplace.numpy.layout import out_sharding, permuted
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import grid

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


@only_cpu
def test_what_can_be_asked_for(platform: Platform) -> None:
    sharding = NamedSharding(grid(), P("x"))
    assert out_sharding(None) is None
    assert out_sharding(sharding) is sharding
    with pytest.raises(ValueError, match="Using PartitionSpec when you are not under a mesh context is not allowed"):
        out_sharding(P("x"))
    with cuplace.set_mesh(grid()):
        assert out_sharding(P("x")) == sharding
    with pytest.raises(TypeError, match="only supports instances of `NamedSharding` or `PartitionSpec`"):
        out_sharding(cuplace.devices()[0])


@only_cpu
def test_the_layout_before_a_transpose(platform: Platform) -> None:
    sharding = NamedSharding(grid(), P("x", "y"))
    assert permuted(None, (1, 0)) is None
    assert permuted(sharding, (2, 0, 1)).spec == P("y", None, "x")
    order = (2, 0, 1)
    entries = permuted(sharding, order).spec.padded(3)
    assert P(*(entries[i] for i in order)).trimmed() == sharding.spec
