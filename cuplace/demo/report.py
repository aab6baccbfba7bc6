"""The demo itself: runs the pipeline, checks it, and prints what happened."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable

import numpy as np

import cuplace
from cuplace.demo import pipeline, timeline
from cuplace.demo.pipeline import Run
from cuplace.demo.timeline import Span
from cuplace.profiling.report import IDLE, LABELS, clock
from cuplace.runtime.platform import Platform, current

WIDTH = 80
BAR = 40
LARGEST_ERROR = 1e-5


def demo(options: Namespace) -> int:
    """Run the pipeline that `options` describe (see `cuplace.cli`); 0 where the result is right.

    Raises:
        ValueError: the size does not split over the devices of a stage, or the picture cannot be written.
    """
    platform = current()
    meshes = pipeline.stage_meshes(platform, options.stages)
    microbatches = pipeline.inputs(options.microbatches, options.size)
    print(_title(platform, options, meshes[0].size))
    pipeline.warm_up(meshes, microbatches[0])
    run = _watched(meshes, microbatches)
    error = _largest_error(run, microbatches, options.stages)
    right = error <= LARGEST_ERROR
    verdict = "equal" if right else "DIFFER FROM"
    print(f"Checked   the {len(run.results)} results {verdict} NumPy's, largest difference {error:.1e}\n")
    _show(run, platform)
    if "svg" in options:
        _draw(run, options.svg)
    return 0 if right else 1


def _title(platform: Platform, options: Namespace, width: int) -> str:
    kind = repr(platform.devices[0]).partition("(")[0]
    kibibytes = 4 * options.size**2 / 2**10
    size = f"{kibibytes / 2**10:.3g} MiB" if kibibytes >= 2**10 else f"{kibibytes:.3g} KiB"
    return (
        f"Platform  {platform.name}: {platform.reason}\n"
        f"Devices   {len(platform.devices)} x {kind}\n"
        f"Pipeline  {options.stages} stages of {width} device{'s' if width > 1 else ''}, "
        f"{options.microbatches} microbatches of {options.size} x {options.size} float32 ({size})"
    )


def _watched(meshes: list[cuplace.Mesh], microbatches: list[np.ndarray]) -> Run:
    """The finished run, with a progress line while it lasts."""
    live, total = sys.stdout.isatty(), len(microbatches)
    for run in pipeline.execute(meshes, microbatches):
        filled = BAR * run.done // total
        line = f"Running   [{'#' * filled}{'.' * (BAR - filled)}] {run.done} of {total} microbatches done"
        if live or run.done == total:
            print(line, end="\n" if run.done == total else "\r", flush=True)
    return run


def _largest_error(run: Run, microbatches: list[np.ndarray], stages: int) -> float:
    differences = [
        np.abs(np.asarray(result) - pipeline.expected(microbatch, stages)).max()
        for result, microbatch in zip(run.results, microbatches, strict=True)
    ]
    return float(max(differences))


def _show(run: Run, platform: Platform) -> None:
    """The timeline and the overlap: as measured where the platform has a clock, else as the order allows."""
    def label(submission: int) -> str:
        return LABELS[run.microbatch_of[submission] % len(LABELS)]

    steps = timeline.replayed(run.submissions, label)
    spans = timeline.measured(run.submissions, label)
    if len(spans) < len(run.submissions):
        print("Timeline  by the order alone, each piece of work one step long (no times are recorded here)")
        _show_lanes(steps, platform, lambda time: f"{time:.0f}")
        _show_overlap(steps, lambda time: f"{time:.0f} steps")
        return
    since = _clock(run.began, run.ended - run.began)
    machine = f"in virtual time on {platform.backend.machine.name}, " if platform.name == "sim" else ""
    print(f"Timeline  {machine}all was enqueued after {since(run.enqueued)} and done after {since(run.ended)}")
    _show_lanes(spans, platform, since)
    _show_overlap(spans, _clock(0, run.ended - run.began))
    order = timeline.overlap(steps)
    work = f"these {order.serial:.0f} pieces of work"
    print(f"Order     the waits alone would let {work} be done in {order.span:.0f} steps,")
    print("          if each took one step and all streams ran at once")


def _draw(run: Run, path: str) -> None:
    """The timeline as a picture."""
    try:
        run.profile.svg(path)
    except OSError as error:
        raise ValueError(f"--svg {path} cannot be written: {error.strerror}") from None
    print(f"Picture   {path}")


def _clock(origin: int, span: int) -> Callable[[float], str]:
    """Times since ``origin``, in units that suit the span of all of them (all in nanoseconds)."""
    told = clock(span * 1e-9)
    return lambda nanoseconds: told(nanoseconds - origin)


def _show_lanes(spans: list[Span], platform: Platform, time: Callable[[float], str]) -> None:
    first, last = time(min(span.start for span in spans)), time(max(span.end for span in spans))
    print(f"{'':19}{first}{last:>{WIDTH - len(first)}}")
    for line in timeline.draw(spans, len(platform.devices), WIDTH):
        print(line)
    print(f"{'':19}a character is the number of the microbatch; {IDLE} is idle\n")


def _show_overlap(spans: list[Span], time: Callable[[float], str]) -> None:
    found = timeline.overlap(spans)
    print(f"Overlap   {found.hidden_share:.0%} of the {time(found.transfer)} of transfers ran while a device computed")
    print(
        f"          {time(found.serial)} of work took {time(found.span)}: "
        f"{found.concurrency:.1f} things ran at once on average"
    )
