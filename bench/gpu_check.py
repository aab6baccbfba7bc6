"""All that needs a GPU: `bash bench/gpu_check.sh`. Writes one JSON and a page of text, and fails if something failed.

The tests marked `gpu` and the figures of `bench.gpu_figures` run in processes of their own, each within its time.
"""

from __future__ import annotations

import argparse
import json
import platform as python_platform
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
FIRST = ["tests/gpu", "tests"]
"""What only real GPUs can show comes before the rest, should the time be over."""

MOST_MINUTES = 8.0
_FOR_FIGURES = 0.25  # of the time

_OUTCOME = re.compile(r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*$", re.MULTILINE)
_COLLECTED = re.compile(r"collected (\d+) items?(?: / (\d+) deselected)?")
_REASON = re.compile(r"^(?:SKIPPED|FAILED|ERROR) .*$", re.MULTILINE)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"gpu_check: {message} (see bash bench/gpu_check.sh --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, 1 where something failed or nothing could run, 2 for a wrong option."""
    options = _options(arguments)
    sys.path.insert(0, str(ROOT))
    from tests import hardware

    fake = hardware.count() == 0
    problem = _missing(fake)
    if problem:
        print(f"gpu_check: {problem}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    limit = options.minutes * 60
    report: dict[str, Any] = {"fake": fake, "python": python_platform.python_version()}
    report["figures"] = run_figures(fake, options.out, limit * _FOR_FIGURES)
    report["tests"] = run_tests(options.tests, options.out, limit - (time.monotonic() - start))
    report["failed"] = failures(report)
    report["seconds"] = None if fake else time.monotonic() - start
    (options.out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    page = text(report)
    (options.out / "gpu_check.txt").write_text(page)
    print(page, end="")
    return 1 if report["failed"] else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="gpu_check", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_check", help="folder (default: %(default)s)")
    parser.add_argument("--minutes", type=_minutes, default=MOST_MINUTES, help="for all of it (default: %(default)s)")
    parser.add_argument("tests", nargs="*", default=FIRST, help="files or folders of tests (default: all)")
    options = parser.parse_args(arguments)
    for path in options.tests:
        if not (ROOT / path.partition("::")[0]).exists():
            parser.error(f"there are no tests at {path!r}")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out} is not a folder")
    return options


def _minutes(given: str) -> float:
    try:
        minutes = float(given)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 60:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number of minutes up to 60")
    return minutes


def _missing(fake: bool) -> str | None:
    """What is not there that nothing can run without."""
    for module, package in (("cupy", "'cuplace[cuda12]' or 'cuplace[cuda13]'"), ("pytest", "pytest")):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode:
            return f"{module} cannot be imported: pip install {package}"
    if fake:
        from tests import fakecuda

        reason = fakecuda.missing()
        return f"no GPU answers, and there are no fake ones: {reason}" if reason else None
    return None


# ---------------------------------------------------------------------- running


def run_figures(fake: bool, out: Path, limit: float) -> dict[str, Any]:
    """The figures, or under ``error`` why there are none."""
    command = [sys.executable, "-m", "bench.gpu_figures", *(["--fake"] if fake else [])]
    status, said = _run(command, out / "figures.log", limit)
    if status == 0:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found
    lines = said.strip().splitlines() or ["no output"]
    return {"error": lines[-1] if status is not None else f"not ready after {limit:.0f} s", "log": "figures.log"}


def run_tests(paths: list[str], out: Path, limit: float) -> dict[str, Any]:
    """How many tests passed, which did not, and why those were skipped that were."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", *paths]
    status, said = _run(command, out / "tests.log", limit)
    outcomes = dict(_OUTCOME.findall(said))
    counts = Counter(outcomes.values())
    return {
        "status": status, "passed": counts["PASSED"], "skipped": counts["SKIPPED"],
        "failed": [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR", "XPASS")],
        "not_run": max(_selected(said) - len(outcomes), 0),
        "reasons": _REASON.findall(said), "log": "tests.log",
    }  # fmt: skip


def _selected(said: str) -> int:
    """How many tests pytest was to run."""
    found = _COLLECTED.search(said)
    if found is None:
        return 0
    collected, deselected = int(found[1]), int(found[2] or 0)
    return collected - deselected


def _run(command: list[str], log: Path, limit: float) -> tuple[int | None, str]:
    """The exit status (None where the time was over) and what was said, which stands in the log, too."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, text=True
        )
        try:
            status: int | None = process.wait(max(limit, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    return status, log.read_text()


def failures(report: dict[str, Any]) -> list[str]:
    """What failed, a line for each; nothing where all is well."""
    tests, found = report["tests"], []
    if "error" in report["figures"]:
        found.append(f"figures: {report['figures']['error']}")
    found += [f"test: {name}" for name in tests["failed"]]
    if tests["not_run"]:
        found.append(f"tests: {tests['not_run']} had not run when the time was over")
    if tests["status"] not in (0, None) and not tests["failed"]:
        found.append(f"tests: pytest ended with status {tests['status']}, see {tests['log']}")
    return found


# ---------------------------------------------------------------------- the page


def text(report: dict[str, Any]) -> str:
    """The page: one screen of what matters."""
    lines = ["cuplace on fake GPUs: no times" if report["fake"] else "cuplace on GPUs", ""]
    figures = report["figures"]
    if "error" not in figures:
        lines += [*_machine(figures["machine"], report["python"]), "", *_figures(figures), ""]
    tests = report["tests"]
    failed = len(tests["failed"])
    lines.append(f"tests        {tests['passed']} passed, {failed} failed, {tests['skipped']} skipped")
    lines += [f"             {reason}" for reason in tests["reasons"][:20]]
    lines += ["", *(f"FAILED {line}" for line in report["failed"])] if report["failed"] else ["", "All passed."]
    return "\n".join(lines) + "\n"


def _machine(machine: dict[str, Any], python: str) -> list[str]:
    lines = [
        f"GPU {i}        {gpu['name']}, {gpu['uuid']}, sm_{gpu['compute_capability'].replace('.', '')}, "
        f"{gpu['bytes'] / 2**30:.1f} GiB, {gpu['copy_engines']} copy engines"
        for i, gpu in enumerate(machine["gpus"])
    ]
    software = {
        "driver": f"{machine['driver'] or 'unknown'} (CUDA {machine['cuda_driver']})",
        "runtime": machine["cuda_runtime"], "CuPy": machine["cupy"], "NumPy": machine["numpy"], "Python": python,
        "cuplace": machine["cuplace"],
    }  # fmt: skip
    return [*lines, "software     " + ", ".join(f"{name} {version}" for name, version in software.items())]


def _figures(figures: dict[str, Any]) -> list[str]:
    lines = ["bandwidth    ours, the limit in the same run, and the share of it"]
    for row in figures["bandwidth"]:
        ours, limit = _number(row["gb_per_s"], "GB/s"), _number(row["limit_gb_per_s"], "GB/s")
        path = f"  by {row['path']}" if "path" in row else ""
        lines.append(f"  {row['name']:38} {ours:>13} {limit:>13} {_percent(row['share']):>7}{path}")
    lines += ["", "overlap      a copy alone, a kernel alone, both at once, and the share that is hidden"]
    for row in figures["overlap"]:
        times = " ".join(f"{_time(row[name]):>11}" for name in ("copy_s", "kernel_s", "both_s"))
        lines.append(f"  {row['name']:8} {times} {_percent(row['hidden_share']):>7}")
    spun, page = figures["pipeline"]
    lines += ["", f"pipeline     {spun['name']}: {_time(spun['seconds'])}, ideal {_time(spun['ideal_s'])}, "]
    lines[-1] += f"one after the other {_time(spun['serial_s'])}: {_percent(spun['overlap_share'])} of what can overlap"
    lines += [f"             {page['name']}: {_time(page['seconds'])}, waiting after each call "]
    lines[-1] += f"{_time(page['waiting_s'])}: {_number(page['faster'], 'times')} faster"
    lines += ["", "dispatch     a call returns after"]
    lines += [f"  {row['name']:38} {_time(row['call_s']):>13}" for row in figures["dispatch"]]
    (wait,) = figures["wait"]
    late, busy = _time(wait["late_s"]), _percent(wait["processor_share"])
    return [*lines, "", f"waiting      {wait['name']} ends {late} late, and takes {busy} of a processor"]


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g} {unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if abs(seconds) >= s), ("us", 1e-6))
    return f"{seconds / scale:.4g} {unit}"


if __name__ == "__main__":
    sys.exit(main())
