"""Churn for an hour on a running server: `make soak MINUTES=60`, or `python -m tests.soak.run MINUTES`.

    4 probes       turns that are all alike, timed
    4 keepers      five conversations each, mostly idle and pushed out of the pool; every answer is known beforehand
    8 others       whatever a caller may do, at random: those of the load run

on a pool with room for a part of it, with the disk tier, the journal and drafts. Holds when all that `load.driving` checks
does, when no part of the server grew after the first third, and when the last quarter of the rest was as fast as its first.
Writes what it found to build/soak.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from sojourn.app.config import cache_dir
from tests.load.asking import Asking
from tests.load.caller import Caller, Sizes
from tests.load.driving import PARTS, Runs, drive
from tests.soak.keeper import Keeper
from tests.soak.machine import Onlooker
from tests.soak.probe import Probe
from tests.soak.report import Findings
from tests.soak.scripts import Script, learned
from tests.support.server import ROOT, Server, serving

PROBES = 4
KEEPERS = 4
KEPT = 5  # conversations of a keeper
OTHERS = 8
SMOLLM2 = (
    *("--context", "1024", "--pool-tokens", "5120", "--chunk", "128", "--threads", "2", "--strict-mem-check", "1"),
    *("--speculate", "ngram", "--durability", "turn", "--disk-cache-bytes", str(128 << 20)),
)
SMOLLM2_SIZES = Sizes("smollm2", vocab=49_152, context=1024, long_prompt=300, answer=16, long_answer=80)
COUNTED = (
    "sojourn_demotions_total", "sojourn_retractions_total", "sojourn_retracted_tokens_total", "sojourn_steps_total",
    "sojourn_kv_evicted_pages_total", "sojourn_kv_demoted_bytes_total", "sojourn_kv_promoted_bytes_total",
    "sojourn_kv_fetches_total", "sojourn_kv_fetches_failed_total", "sojourn_kv_tier_lost_pages_total",
    "sojourn_kv_pages_leaked", "sojourn_engine_starts_total", "sojourn_spec_drafted_tokens_total",
    "sojourn_spec_accepted_tokens_total",
)  # fmt: skip


def soak(server: Server, *, seconds: float, seed: int, sizes: Sizes) -> Findings:
    """Raises UnexpectedError (in a group) for whatever does not hold; bounds on growth and times are the findings'."""
    scripts = learned(server, sizes, KEEPERS * KEPT, seed)
    callers = PROBES + KEEPERS + OTHERS
    findings = Findings(f"Soak: {callers} callers for {seconds / 60:,.0f} minutes on {sizes.model}, seed {seed}")

    def cast(asking: Asking) -> Sequence[Runs]:
        return [
            *_cast(asking, findings, scripts, seed, sizes),
            Onlooker([server.pid_of(part) for part in PARTS], findings.others),
        ]

    drive(server, findings.summary, seconds=seconds, cast=cast)
    findings.counted = counted(server)
    return findings


def _cast(asking: Asking, findings: Findings, scripts: Sequence[Script], seed: int, sizes: Sizes) -> list[Runs]:
    probes = range(PROBES)
    keepers = range(PROBES, PROBES + KEEPERS)
    others = range(PROBES + KEEPERS, PROBES + KEEPERS + OTHERS)
    first, whole = findings.first_token, findings.whole_turn
    return [
        *(Probe(number, seed, asking, sizes, first, whole) for number in probes),
        *(Keeper(number, seed, asking, scripts[place::KEEPERS]) for place, number in enumerate(keepers)),
        *(Caller(number, seed, asking, sizes) for number in others),
    ]


def counted(server: Server) -> dict[str, float]:
    """Sums over labels, except where they say why."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name in COUNTED:
                why = sample.labels.get("reason") or sample.labels.get("cause")
                name = f"{sample.name} ({why})" if why else sample.name
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description="Churn on a server, and see whether it is as good at the end.")
    parser.add_argument("minutes", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-to", type=Path, default=ROOT / "build" / "soak")
    arguments = parser.parse_args()
    console, began = Console(), time.strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory(prefix="sojourn-soak-") as folder:
        options = (*SMOLLM2, "--disk-cache", folder)
        with serving(cache_dir(), *options, model="smollm2", cache=cache_dir()) as server:
            findings = soak(server, seconds=60 * arguments.minutes, seed=arguments.seed, sizes=SMOLLM2_SIZES)
    findings.title += f", {began}"
    findings.write(arguments.write_to)
    console.print(findings.table())
    broken = findings.broken()
    for sentence in broken:
        console.print(f"did not hold: {sentence}")
    console.print("" if broken else "every answer was the one asked for; nothing leaked; all bounds held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
