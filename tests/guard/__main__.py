"""``python -m tests.guard [options] [words]``: the table of all mutants, or of the named.

Words are parts of the names of sites. With ``--values`` it tells, too, which test finds a wrong value where the
detectors are off; with ``--note`` it notes what was killed in ``killed.tsv``, from which CI draws its sample. With
``--open --quick`` or with ``--tests`` one sees soon whether a new test kills what no other has.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from tests.guard.guard import Outcome, Worker, Workers, chosen, explained, known, known_values, note_killed, orders, row
from tests.guard.sites import Site, find_sites


def tried(worker: Worker, site: Site, *, values: bool, **ways: Any) -> tuple[Outcome, Outcome | None]:
    """What became of the mutant of a site, and of it without detectors, if wanted."""
    outcome = worker.try_mutant(site, **ways)
    return outcome, worker.try_mutant(site, only_values=True, **ways) if values and orders(site) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guard", description="Try mutants of what orders work.")
    parser.add_argument("words", nargs="*", help="parts of the names of sites")
    parser.add_argument("--values", action="store_true", help="look for wrong values, too, without detectors")
    parser.add_argument("--note", action="store_true", help="note what was killed")
    parser.add_argument("--open", action="store_true", help="only what is not noted as killed (--values: by a value)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many mutants at a time")
    parser.add_argument("--quick", action="store_true", help="on few seeds, and for at most a minute each")
    parser.add_argument("--seconds", type=float, default=600.0, help="of computing for each, at most (600)")
    parser.add_argument("--tests", nargs="+", help="only these files, or FILE::TEST")
    options = parser.parse_args()
    reasons, survivors, sites = explained(), 0, find_sites()
    settled = set(reasons) if options.open else set()
    if options.open:
        unseen = {site.key for site in sites if options.values and orders(site)} - known_values().keys()
        settled |= known().keys() - unseen
    ways: dict[str, Any] = {"seconds": options.seconds}
    if options.quick:
        ways = {"quick": True, "seconds": min(options.seconds, 60.0)}
    if options.tests:
        ways["stages"] = [options.tests]
    wanted = [site for site in chosen(sites, options.words) if site.key not in settled]
    with Workers(options.jobs) as workers:
        for outcome, value in workers.map(functools.partial(tried, values=options.values, **ways), wanted):
            survivors += not outcome.killed and outcome.site.key not in reasons
            print(row(outcome, value, reasons.get(outcome.site.key)), flush=True)
            if options.note:
                note_killed(outcome, value, sites)
    print(f"{survivors} survivors")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
