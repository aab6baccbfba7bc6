"""A user's own code between ours keeps its order: random programs, and the bugs of this field, planted one by one.

A thousand programs in every run; twenty thousand by `python -m pytest -n 2 --deep -k short_programs
tests/order/test_borrowing.py`, in half an hour or so. `-k "short_programs and cuda"` takes those of one platform.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.errors import RaceError
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.scheduler import Scheduler
from cuplace.runtime.task import ComputeTask
from tests import fakecuda, fakegpus
from tests.order.borrowing_program import BorrowingProgram, User
from tests.runtime.streams import jitter

VALUES = np.arange(64, dtype=np.int32)

# ---------------------------------------------------------------------- random programs

GROUPS = {"cpu": 10, "sim": 6, "cuda": 4}
DEEP = 20
"""How many groups of programs run, and how many times as many with `--deep`."""

PLATFORMS, PROGRAMS = 2, 25
"""In a group; platforms differ in their seeds, and programs share one, since each platform traces and places anew."""

assert sum(GROUPS.values()) * PLATFORMS * PROGRAMS == 1000

EACH = [
    pytest.param(name, group, marks=[pytest.mark.deep] if group >= count else [])
    for name, count in GROUPS.items()
    for group in range(DEEP * count)
]


def opened(name: str, number: int) -> Platform:
    """A platform of a name in one of the ways in which it can run."""
    if name == "cuda":
        return fakegpus.open_fake(fakegpus.DEEP_CASES[number % len(fakegpus.DEEP_CASES)])
    if name == "cpu":
        return open_platform("cpu", 3, jitter=jitter(number) if number % 2 else None)
    config.update("check_order", True)
    return open_platform("sim", 3, seed=number)


@pytest.mark.parametrize(("name", "group"), EACH)
def test_short_programs_give_numpys_values(
    name: str, group: int, restored_config: None, record_property: Callable[[str, object], None]
) -> None:
    record_property("platform", name)
    if name == "cuda" and fakegpus.missing():
        pytest.skip(fakegpus.missing())
    done = np.zeros(3, int)
    for i in range(PLATFORMS):
        number = PLATFORMS * group + i
        platform = opened(name, number)
        with activated(platform):
            for k in range(PROGRAMS):
                program = BorrowingProgram(platform, 100_000 + PROGRAMS * number + k, steps=3)
                program.run()
                done += (program.kernels, program.adoptions, program.loans)
        platform.close()
        if name == "cuda":
            fakegpus.assert_no_reports()
    assert min(done) > 0


@pytest.mark.order
def test_longer_programs_give_numpys_values(platform: Platform, request: pytest.FixtureRequest) -> None:
    seed = request.node.callspec.params["platform"].seed
    BorrowingProgram(platform, 200_000 + seed, steps=12).run()


# ---------------------------------------------------------------------- planted bugs


def adopts(platform: Platform, user: User) -> None:
    """An array is taken while the user's stream is still making it, and given back while ours is still reading it."""
    here, there = platform.devices[:2]
    with user.on(here, "non-blocking"):
        theirs = user.array(VALUES)
        x = jnp.from_dlpack(theirs)
        moved = cuplace.device_put(x, there)
        result = x * 2
        del x, theirs
        platform.scheduler.park()
        reused = [user.array(VALUES * i) for i in range(3)]
    np.testing.assert_array_equal(result, (VALUES * 3 - 1) * 2)
    np.testing.assert_array_equal(moved, VALUES * 3 - 1)
    for i, array in enumerate(reused):
        np.testing.assert_array_equal(user.values(array, here, "non-blocking"), VALUES * i * 3 - 1)


def lends(platform: Platform, user: User) -> None:
    """The user reads what our stream is still making, and lets go of it while reading; its memory is used again."""
    here = platform.devices[0]
    base = cuplace.device_put(VALUES, here)
    x = base * 5
    with user.on(here, "non-blocking"):
        mine = user.borrow(x) * 7
    del x
    reused = [base + i for i in range(3)]
    np.testing.assert_array_equal(user.values(mine, here, "non-blocking"), VALUES * 35)
    for i, array in enumerate(reused):
        np.testing.assert_array_equal(array, VALUES + i)


def calls_kernels(platform: Platform, user: User) -> None:
    """A kernel of the user's between two moves; what it made and read is dropped, and used again."""
    mesh, other = (cuplace.make_mesh((2,), ("x",), devices=platform.devices[i : i + 2]) for i in (0, 2))
    x = cuplace.device_put(VALUES, cuplace.NamedSharding(mesh, cuplace.P("x")))
    y = cuplace.map_shards(WRONG(user) or user.kernel(3, 1), x * 2)
    moved = cuplace.device_put(y, cuplace.NamedSharding(other, cuplace.P("x")))
    del y
    again = cuplace.map_shards(user.kernel(2, 5), x)
    np.testing.assert_array_equal(moved, VALUES * 6 + 1)
    np.testing.assert_array_equal(again, VALUES * 2 + 5)


def writes_in_place(platform: Platform, user: User) -> None:
    """A function writes over memory that a copy is still being made of."""
    here, there = platform.devices[:2]
    x = cuplace.device_put(VALUES, here) * 1
    copy = cuplace.device_put(x, there)

    def add(x: Any) -> Any:
        x += 1
        return x

    y = cuplace.map_shards(add, x, donate_argnums=0)
    np.testing.assert_array_equal(copy, VALUES)
    np.testing.assert_array_equal(y, VALUES + 1)


WRONG: Callable[[User], Any] = lambda user: None  # noqa: E731
"""A function in the place of a right one; set by a bug."""


def kernel_on_the_wrong_stream(patch: pytest.MonkeyPatch) -> None:
    def wrong(user: User) -> Callable[[Any], Any]:
        right = user.kernel(3, 1)

        def elsewhere(x: Any) -> Any:
            with user.xp.cuda.Stream(non_blocking=True):
                return right(x)

        return elsewhere

    patch.setitem(globals(), "WRONG", wrong)


def adopted_memory_is_taken_as_complete(patch: pytest.MonkeyPatch) -> None:
    adopt = Scheduler.adopt
    patch.setattr(
        Scheduler, "adopt", lambda self, array, device, stream=None: adopt(
            self, array, device, stream if stream is device.compute else None
        )
    )  # fmt: skip


def results_are_taken_as_complete(patch: pytest.MonkeyPatch) -> None:
    adopt = Scheduler.adopt

    def mutant(self: Scheduler, array: Any, device: Any, stream: Any = None) -> Any:
        buffer = adopt(self, array, device, stream)
        if stream is device.compute:
            buffer.writes = ()
        return buffer

    patch.setattr(Scheduler, "adopt", mutant)


def adopted_memory_goes_back_at_once(patch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.memory import ForeignArena

    patch.setattr(ForeignArena, "release", lambda self, block, events: self.free(block))


def borrower_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_wait_for_writes", lambda self, buffer, stream: None)


def end_of_a_loan_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_take_back", lambda self, returned: None)


def pending_readers_are_written_over(patch: pytest.MonkeyPatch) -> None:
    wait = Scheduler._wait_before_write

    def mutant(self: Scheduler, stream: Any, buffer: Any) -> Any:
        buffer.reads = None
        return wait(self, stream, buffer)

    patch.setattr(Scheduler, "may_overwrite", lambda self, buffers: True)
    patch.setattr(Scheduler, "_wait_before_write", mutant)


class Seeded(NamedTuple):
    """A bug, a program that it breaks, and what the report names."""

    bug: Callable[[pytest.MonkeyPatch], None]
    program: Callable[[Platform, User], None]
    report: str


BUGS = [
    Seeded(kernel_on_the_wrong_stream, calls_kernels, "scale_and_add on stream"),
    Seeded(adopted_memory_is_taken_as_complete, adopts, "cupy_"),
    Seeded(results_are_taken_as_complete, calls_kernels, "write by scale_and_add"),
    Seeded(adopted_memory_goes_back_at_once, adopts, "of device 0"),
    Seeded(borrower_does_not_wait, lends, "read by cupy_multiply__int32_int_int32"),
    Seeded(end_of_a_loan_is_not_recorded, lends, "read by cupy_multiply__int32_int_int32"),
    Seeded(pending_readers_are_written_over, writes_in_place, "write by cupy_add"),
]
MODES = [fakegpus.Case("eager"), fakegpus.Case("lazy"), fakegpus.Case("random", 3, peers=False)]


def reports_of(case: fakegpus.Case, program: Callable[[Platform, User], None]) -> list[fakecuda.Report]:
    platform = fakegpus.open_fake(case)
    user = User(platform)
    with activated(platform):
        with contextlib.suppress(AssertionError):  # a wrong value: by chance in some modes
            program(platform, user)
        platform.scheduler.park()
    platform.close()
    return fakecuda.take_reports()


@pytest.mark.parametrize("case", MODES, ids=lambda case: case.label)
@pytest.mark.parametrize("seeded", BUGS, ids=lambda seeded: seeded.bug.__name__)
def test_a_bug_is_reported(seeded: Seeded, case: fakegpus.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    assert reports_of(case, seeded.program) == []
    seeded.bug(monkeypatch)
    found = [report for report in reports_of(case, seeded.program) if report.kind == "race"]
    assert any(seeded.report in str(report) for report in found), "\n".join(map(str, found))
    assert any("test_borrowing.py" in str(report) or "borrowing_program.py" in str(report) for report in found)


def functions_on_the_wrong_stream(patch: pytest.MonkeyPatch) -> None:
    enqueue = ComputeTask.enqueue

    def mutant(self: ComputeTask, stream: Any, *rest: Any) -> None:
        enqueue(self, stream.device.download if self.name.endswith("doubled") else stream, *rest)

    patch.setattr(ComputeTask, "enqueue", mutant)


def doubled(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("name", ["sim", "cpu"])
def test_check_order_sees_what_functions_touch(
    name: str, monkeypatch: pytest.MonkeyPatch, restored_config: None
) -> None:
    """In a user's own program: the report names the function and the user's line."""
    for seed in range(10):
        platform = open_platform(name, 3, **({"seed": seed} if name == "sim" else {}))
        with activated(platform), cuplace.check_order():
            x = cuplace.device_put(VALUES, platform.devices[0])
            np.testing.assert_array_equal(cuplace.map_shards(doubled, x * 2), VALUES * 4)
            latch = platform.scheduler.hold(platform.devices[0].compute)
            with monkeypatch.context() as patch:
                functions_on_the_wrong_stream(patch)
                with pytest.raises(RaceError) as caught:
                    cuplace.map_shards(doubled, x * 3)
            latch.release()
        assert "compute 'doubled', on stream" in str(caught.value)
        assert "reads 256 bytes of buffer" in str(caught.value)
        assert str(caught.value).count("test_borrowing.py") == 2
        platform.close()
