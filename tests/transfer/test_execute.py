from __future__ import annotations

import numpy as np
import pytest

from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.runtime.topology import find_topology
from cuplace.transfer.batch import Batch
from cuplace.transfer.execute import gather_to_host, move
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload
from tests.runtime.streams import share_a_queue
from tests.transfer.machines import NODE
from tests.transfer.shardings import mesh

F32 = np.dtype("float32")


def numbers(shape):
    return np.arange(np.prod(shape, dtype=int), dtype=F32).reshape(shape)


def halves(platform):
    return mesh(platform.devices[:4], (4,), ("x",)), mesh(platform.devices[4:], (4,), ("x",))


@pytest.mark.order
def test_replicated_targets_pass_on_what_they_received(platform):
    source, target = SingleDeviceSharding(platform.devices[1]), NamedSharding(halves(platform)[0], P())
    old = upload(numbers((24, 3)), source, None)
    plan = plan_move((24, 3), F32, source, target, topology=find_topology(NODE))
    new = move(old, plan, None)
    assert any(move.after is not None for move in plan.moves) == (platform.devices[2].gpu != platform.devices[0].gpu)
    for buffer in new:
        np.testing.assert_array_equal(platform.scheduler.download(buffer), numbers((24, 3)))
    np.testing.assert_array_equal(gather_to_host(new, target, (24, 3), F32), numbers((24, 3)))


def test_chains_of_several_arrays_make_one_batch(platform):
    source, target = SingleDeviceSharding(platform.devices[1]), NamedSharding(halves(platform)[0], P())
    shapes = [(24, 3), (5,), (16, 2)]
    batch = Batch()
    for shape in shapes:
        old = upload(numbers(shape), source, None)
        batch.move(old, plan_move(shape, F32, source, target, topology=find_topology(NODE)))
    for shape, new in zip(shapes, batch.run(None), strict=True):
        np.testing.assert_array_equal(gather_to_host(new, target, shape, F32), numbers(shape))
        for buffer in new:
            np.testing.assert_array_equal(platform.scheduler.download(buffer), numbers(shape))


def test_a_plan_is_one_batch_of_moves_that_never_wait_for_each_other(platform):
    a, b = halves(platform)
    source, target = NamedSharding(a, P("x")), NamedSharding(b, P(None, "x"))
    old = upload(numbers((8, 8)), source, None)
    platform.scheduler.host_wait(old)
    plan = plan_move((8, 8), F32, source, target)
    with platform.scheduler.log.record() as submissions:
        move(old, plan, None)
    assert [s.kind for s in submissions] == ["move"] * 16
    assert sum(s.nbytes for s in submissions) == plan.nbytes
    assert not set().union(*(s.waits for s in submissions)) & {s.id for s in submissions}


def test_a_move_returns_while_its_source_is_held(platform):
    a, b = halves(platform)
    source, target = NamedSharding(a, P("x")), NamedSharding(b, P("x"))
    latch = platform.scheduler.hold(a.flat_devices[0].upload)
    old = upload(numbers((8,)), source, None)
    new = move(old, plan_move((8,), F32, source, target), None)
    assert not platform.scheduler.is_ready(new[:1])
    held, *streams = [one.transfer_to(other) for one, other in zip(a.flat_devices, b.flat_devices, strict=True)]
    apart = [buffer for buffer, stream in zip(new[1:], streams, strict=True) if not share_a_queue(stream, held)]
    platform.scheduler.host_wait(apart)
    latch.release()
    np.testing.assert_array_equal(gather_to_host(new, target, (8,), F32), numbers((8,)))


def test_aliased_shards_are_the_same_buffers(platform):
    a, _ = halves(platform)
    source, target = NamedSharding(a, P()), SingleDeviceSharding(a.flat_devices[2])
    old = upload(numbers((4,)), source, None)
    assert move(old, plan_move((4,), F32, source, target), None) == [old[2]]
    copied = move(old, plan_move((4,), F32, source, target, may_alias=False), None)
    assert copied != [old[2]]
    np.testing.assert_array_equal(platform.scheduler.download(copied[0]), numbers((4,)))


def test_an_upload_takes_the_values_as_of_the_call(platform):
    a, _ = halves(platform)
    host = numbers((8,))
    latch = platform.scheduler.hold(a.flat_devices[1].upload)
    buffers = upload(host, NamedSharding(a, P("x")), None)
    host[:] = -1
    latch.release()
    np.testing.assert_array_equal(gather_to_host(buffers, NamedSharding(a, P("x")), (8,), F32), numbers((8,)))


def test_a_gather_is_read_only_and_takes_each_box_once(platform):
    a, _ = halves(platform)
    for spec in (P("x"), P()):
        sharding = NamedSharding(a, spec)
        host = gather_to_host(upload(numbers((8,)), sharding, None), sharding, (8,), F32)
        assert not host.flags.writeable
        np.testing.assert_array_equal(host, numbers((8,)))
