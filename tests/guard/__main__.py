"""``python -m tests.guard [options] [words]``: the table of all mutants, or of the named.

Words are parts of the names of sites. With ``--values`` it tells, too, which test finds a wrong value where the
detectors are off; with ``--note`` it notes what was killed in ``killed.tsv``, from which CI draws its sample. With
``--open --quick`` or with ``--tests`` one sees soon whether a new test kills what no other has.
"""

from __future__ import annotations

import argparse
import sys

from tests.guard.guard import Worker, chosen, explained, known, note_killed, orders, row
from tests.guard.sites import find_sites


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guard", description="Try mutants of what orders work.")
    parser.add_argument("words", nargs="*", help="parts of the names of sites")
    parser.add_argument("--values", action="store_true", help="look for wrong values, too, without detectors")
    parser.add_argument("--note", action="store_true", help="note what was killed")
    parser.add_argument("--open", action="store_true", help="only what is neither noted as killed nor explained")
    parser.add_argument("--quick", action="store_true", help="on few seeds, and for at most a minute each")
    parser.add_argument("--tests", nargs="+", help="only these files, or FILE::TEST")
    options = parser.parse_args()
    reasons, survivors, sites = explained(), 0, find_sites()
    settled = {*reasons, *known()} if options.open else set()
    ways = {"quick": True, "seconds": 60.0} if options.quick else {}
    if options.tests:
        ways["stages"] = [options.tests]
    with Worker() as worker:
        for site in chosen(sites, options.words):
            if site.key in settled:
                continue
            outcome = worker.try_mutant(site, **ways)
            value = worker.try_mutant(site, only_values=True) if options.values and orders(site) else None
            survivors += not outcome.killed and site.key not in reasons
            print(row(outcome, value, reasons.get(site.key)), flush=True)
            if options.note:
                note_killed([outcome], sites)
    print(f"{survivors} survivors")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
