"""Executables tell what they cost: the sum of what the records of their operations estimate, for one shard."""

from __future__ import annotations

from typing import Any

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import Cost


def costs(platform: Platform, function: Any, *operands: Any) -> list[Cost]:
    """The cost of each piece of computing that a call enqueues."""
    with platform.scheduler.log.record() as records:
        result = function(*operands)
    cuplace.block_until_ready(result)
    return [record.task.cost for record in records if record.kind == "compute"]


def split(platform: Platform, shape: tuple[int, ...], parts: int) -> cuplace.Array:
    mesh = cuplace.make_mesh((parts,), ("x",), devices=platform.devices[:parts])
    return cuplace.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P("x")))


def test_an_elementwise_operation_reads_and_writes_each_shard(platform: Platform) -> None:
    x = split(platform, (8, 16), 4)
    assert costs(platform, lambda x: x + x, x) == [Cost(32.0, 3 * 32 * 4.0)] * 4


def test_a_program_costs_the_sum_of_its_operations(platform: Platform) -> None:
    x = split(platform, (8, 16), 4)
    once = costs(platform, lambda x: x + x, x)[0]
    twice = costs(platform, cuplace.jit(lambda x: (x + x) + x), x)[0]
    assert twice == once + once


def test_a_product_costs_two_operations_for_each_pair(platform: Platform) -> None:
    x = cuplace.device_put(np.ones((8, 16), np.float32), platform.devices[0])
    y = cuplace.device_put(np.ones((16, 4), np.float32), platform.devices[0])
    (cost,) = costs(platform, jnp.matmul, x, y)
    assert cost == Cost(2.0 * 8 * 16 * 4, 4.0 * (8 * 16 + 16 * 4 + 8 * 4))


def test_a_loop_costs_its_iterations(platform: Platform) -> None:
    x = cuplace.device_put(np.ones(16, np.float32), platform.devices[0])

    def body(carry: Any, _: Any) -> Any:
        return carry + carry, None

    (once,) = costs(platform, cuplace.jit(lambda x: cuplace.lax.scan(body, x, None, length=1)[0]), x)
    (often,) = costs(platform, cuplace.jit(lambda x: cuplace.lax.scan(body, x, None, length=7)[0]), x)
    assert once == Cost(16.0, 3 * 64.0)
    assert often == Cost(7 * once.flops, 7 * once.bytes)


def test_copies_compute_nothing(platform: Platform) -> None:
    with platform.scheduler.log.record() as records:
        cuplace.block_until_ready(cuplace.device_put(split(platform, (8, 16), 4), platform.devices[0]))
    assert {record.task.cost for record in records} == {Cost(0.0, 0.0)}
