from __future__ import annotations

import numpy as np
import optree
import pytest

import cuplace
import cuplace.lax
from cuplace import P, errors
from cuplace.array.put import device_put
from cuplace.ops.elementwise import ADD, SIN
from cuplace.runtime.context import context_key
from cuplace.staging.operand import operand_key
from cuplace.staging.staged import CacheInfo, Staged, keep, path_text
from cuplace.staging.trace import bind
from tests.array.places import numbers, on, places


def bind_call(staged, body, *operands, key=None, **options):
    return staged.bind(key, operands, lambda: ["x", "y"][: len(operands)], body, **options)


def test_programs_are_kept_by_types_and_key(platform):
    staged, at = Staged("f", "f at here:1"), places(platform)
    x = device_put(numbers(8))

    def body(tracers):
        return bind(SIN, tracers[0])

    for sharding in (platform.devices[1], platform.devices[2]):
        bind_call(staged, body, device_put(x, sharding))
    assert len(staged.programs) == 1
    bind_call(staged, body, device_put(x, on(at.full, "x")))
    bind_call(staged, body, x, key="other")
    assert len(staged.programs) == 3


def test_a_bare_spec_is_read_on_the_mesh_of_each_call(platform):
    """Two meshes of the same shape share a program only where it names neither."""
    at = places(platform)

    @cuplace.jit
    def relaid(x):
        return cuplace.device_put(x, P())

    @cuplace.jit
    def scanned(x):
        return cuplace.lax.scan(lambda carry, _: (cuplace.reshard(carry, P("x")) + 1, None), x, length=2)[0]

    @cuplace.jit
    def plain(x):
        return x + 1

    for mesh in (at.a, at.b, at.a):
        x = device_put(numbers(8), on(mesh, "x"))
        with cuplace.set_mesh(mesh):
            assert relaid(x).sharding == on(mesh, None)
            assert scanned(x).sharding.mesh == plain(x).sharding.mesh == mesh
            np.testing.assert_array_equal(np.asarray(scanned(x)), numbers(8) + 2)
    assert (relaid.cache_info().traces, scanned.cache_info().traces, plain.cache_info().traces) == (2, 2, 1)


def test_nothing_is_kept_of_a_body_that_fails(platform):
    staged = Staged("f", "f at here:1")

    def body(tracers):
        raise KeyError("no")

    with pytest.raises(KeyError):
        bind_call(staged, body, 1.0)
    assert not staged.programs


def test_results_that_are_no_arrays_are_named(platform):
    staged = Staged("f", "f at here:1")
    with pytest.raises(errors.TracedValueError, match=r"function f at here:1 traced for jit.*\['a'\]\[1\]"):
        bind_call(staged, lambda tracers: {"a": (1.0, "text")}, 1.0)


def test_operands_pass_through_only_where_they_may(platform):
    x = device_put(numbers(3))
    bound = bind_call(Staged("f", "f"), lambda tracers: (tracers[0], bind(ADD, *tracers)), x, x)
    first, total = bound((x, x))
    assert first is x
    assert float(total[2]) == 4
    bound = bind_call(Staged("f", "f"), lambda tracers: tracers[0], x, passes=False)
    assert bound((x,)) is not x


def test_unused_operands_count_where_they_shall(platform):
    x, y = (device_put(numbers(3), platform.devices[i]) for i in (0, 1))
    bind_call(Staged("f", "f"), lambda tracers: bind(SIN, tracers[0]), x, y)
    with pytest.raises(errors.IncompatibleDevicesError):
        bind_call(Staged("f", "f"), lambda tracers: bind(SIN, tracers[0]), x, y, keep_unused=True)


def test_types_are_those_of_the_operands(platform):
    staged = Staged("f", "f")
    types = [operand_key(v).type for v in (numbers(3), 1.0)]
    traced = staged.traced(None, types, lambda: ["x", "y"], lambda tracers: bind(ADD, *tracers), context_key())
    assert [v.type for v in traced.program.inputs] == types
    assert optree.treespec_is_leaf(traced.structure)


def test_caches_are_bounded():
    cache = {}
    for i in range(3 * 8192):
        keep(cache, i, i)
    assert len(cache) <= 8192
    assert cache[i] == i


def test_paths_are_written_as_in_python():
    structure = optree.tree_structure({"p": (1, [2])})
    assert [path_text(accessor) for accessor in structure.accessors()] == ["['p'][0]", "['p'][1][0]"]


def test_cache_info_reads_well():
    assert repr(CacheInfo(1, 4, 28, 4)) == "CacheInfo(traces=1, executables=4, hits=28, misses=4)"
