"""How right `why` is: precision, recall and culprits by cause, the error of the states, and false alarms.

Parts, each of which runs alone: `simulated` (nights whose truth is known), `recorded` (a real GPU), `live` (PyTorch
runs with planted faults) and `clean` (much happens, nothing is wrong: whatever is found is a false alarm). Every figure
is marked as simulated, recorded or live. Simulated nights have seeds from 4,001 on, which were not used while the
detectors were made. Ctrl-C ends it with what is known so far.

    python benchmarks/detect.py [--part simulated clean] [--seeds 100] [--markdown FILE] [--verbose]
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import detect_live  # noqa: E402 - in this folder
import detect_recorded  # noqa: E402
import detect_simulated  # noqa: E402
from detect_table import Part, Row, markdown  # noqa: E402

PARTS: dict[str, tuple[Part, ...]] = {
    "simulated": (detect_simulated.nights,),
    "recorded": (detect_recorded.recordings,),
    "live": (detect_live.faults,),
    "clean": (detect_simulated.days, detect_live.clean),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=100, help="of the largest row of nights; the others have fewer")
    parser.add_argument("--first", type=int, default=4_001, help="the first seed")
    parser.add_argument("--evidence", nargs="+", choices=("full", "gpu", "kubernetes"), help="with these only")
    parser.add_argument("--gpus", nargs="+", type=int, help="of these sizes only")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", nargs="+", help="only live runs whose names have one of these words")
    parser.add_argument("--verbose", action="store_true", help="name what was missed and what was wrong")
    parser.add_argument("--markdown", type=Path, help="write the tables into this file as well")
    args = parser.parse_args()
    rows: dict[tuple[str, ...], Row] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        for part in args.part:
            for measure in PARTS[part]:
                for row in measure(args):
                    _show(row, rows.get(row.name), args.verbose)
                    rows[row.name] = row
    except KeyboardInterrupt:
        sys.exit("stopped")
    finally:
        text = markdown(rows.values())
        print(text)
        if args.markdown:
            args.markdown.write_text(text)


def _show(row: Row, before: Row | None, verbose: bool) -> None:
    """How far it is; and what went wrong since the last time."""
    if verbose:
        for note in row.notes[len(before.notes) if before else 0 :]:
            print(note)
    whole = row.all_causes
    print(
        f"{row.part}: {row.what}, {row.evidence}: {row.cases} of {row.of}, "
        f"{whole.right} right of {whole.found} found and {whole.planted} planted",
        end="\n" if row.cases == row.of else "\r",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
