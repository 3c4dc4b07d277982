"""Lakes for tests: clusters with handwritten ledgers, and questions to them."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from datetime import UTC, date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.account.build import sql
from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.fleet import ClusterSums, LakeCluster, LakeQuestion, summed
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.lake_manifest import ensure_lake_source, manifest_header
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Energy, LedgerRow
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_QUARTER
from pyrometer.questions.lake import Lake, answer_of_lake
from pyrometer.questions.registry import question
from pyrometer.store import Store
from pyrometer.store.engines import Engine, Local
from pyrometer.store.lake import LakeStorage
from pyrometer.store.lake.lake_copier import CopyResult, LakeCopier
from pyrometer.store.store import NewPart
from tests.support.hand_ledgers import FIRST, ms_of, objects, random_day, write_days

DAYS = 6
COVERED = LedgerCoverage(ms_of(FIRST), ms_of(FIRST + timedelta(days=DAYS)), 0)
LAKE_GROUPINGS = [name for name in GROUPINGS if name != "cause"]
TARIFF = Settings(energy_usd_per_kwh=0.31, carbon_g_per_kwh=212.0, pue=1.3)
SETTING_NAMES = ("energy_usd_per_kwh", "carbon_g_per_kwh", "pue", "timezone")


def days() -> list[date]:
    return [FIRST + timedelta(days=number) for number in range(DAYS)]


class Facts(NamedTuple):
    """A few days of a cluster."""

    objects: list[Any]
    ledger: dict[date, list[LedgerRow]]
    energy: dict[date, list[Energy]]


def facts(seed: int, cluster: str = "") -> Facts:
    """Random facts of a seed. With a cluster, the objects have unique identities."""
    chance = random.Random(seed)
    found = [in_cluster(record, cluster) for record in objects(chance, ms_of(FIRST))]
    ledger = {day: [in_cluster(row, cluster) for row in random_day(chance, day)] for day in days()}
    energy = {day: [one for row in rows if (one := random_energy(chance, row))] for day, rows in ledger.items()}
    return Facts(found, ledger, energy)


def fill_store(store: Store, *of: Facts) -> None:
    """Stores the facts of some clusters in a folder."""
    store.append([record for one in of for record in one.objects])
    write_days(store, {day: [row for one in of for row in one.ledger[day]] for day in days()})
    for day in days():
        write_energy(store, day, [row for one in of for row in one.energy[day]])


def random_energy(chance: random.Random, row: LedgerRow) -> Energy | None:
    """The energy of a holder in the quarter-hour of a row, None for some rows."""
    quarter_ms = row.minute_ms - row.minute_ms % MS_PER_QUARTER
    if chance.random() < 0.2:
        return None
    return Energy(quarter_ms, row.node_uid, row.slot_index, row.pod_uid, chance.randint(1, 10**9), row.ms, row.ms // 3)


def write_energy(store: Store, day: date, rows: Sequence[Energy]) -> None:
    once = {one[:4]: one for one in rows}
    store.connection.register("written_energy", SCHEMAS["energy"].table(list(once.values())))
    sql.run(store.connection, sql.NO_ACTIVITY)
    wanted = {"energy": "FROM written_energy", "quarter_use": sql.text(sql.SUMMED["quarter_use"])}
    store.replace([NewPart(kind, ms_of(day), ms_of(day) + MS_PER_DAY, query, "") for kind, query in wanted.items()])
    store.connection.unregister("written_energy")


def in_cluster(record: Any, cluster: str) -> Any:
    """A record with identities that are unique to a cluster."""
    if not cluster:
        return record
    uids = {
        name: f"{cluster}/{value}"
        for name in record._fields
        if name.endswith("_uid") and (value := getattr(record, name))
    }
    return record._replace(**uids)


def copy_to_lake(
    store: Store,
    place: LakeStorage,
    cluster: str,
    *,
    now_ms: int = COVERED.end_ms,
    by: LakeCopier | None = None,
    settings: Settings = TARIFF,
) -> CopyResult:
    ensure_lake_source(store)
    header = manifest_header(store, settings._replace(cluster=cluster), COVERED)
    return (by or LakeCopier(place)).copy(store, header, now_ms=now_ms)


def settings_of(header: Any) -> Settings:
    return Settings(**{name: header[name] for name in SETTING_NAMES})


def lake_answer(
    place: LakeStorage,
    parameters: dict[str, str],
    *,
    clusters: Sequence[str] = (),
    engine: Engine | None = None,
    what: str = "cost",
    cache: Path | None = None,
) -> dict[str, Any]:
    lake = Lake(place, clusters, str(cache or "/nonexistent"), 64, settings_of)
    answer = answer_of_lake(lake, what, parameters, engine or Local())
    answer.pop("clusters")
    return answer


def folder_answer(store: Store, parameters: dict[str, str], what: str = "cost") -> dict[str, Any]:
    return question(what, parameters, TARIFF)(store, COVERED)


def random_question(chance: random.Random) -> dict[str, str]:
    """Random parameters: groupings, time range, time zone, price, team and sharing."""
    parameters = {"by": ",".join(chance.sample(LAKE_GROUPINGS, chance.choice((1, 1, 2, 3)))), "all": "1"}
    if chance.random() < 0.6:
        first, last = sorted(chance.sample(range(0, DAYS * 24 * 60), 2))
        del parameters["all"]
        parameters |= {"since": _minute(first), "until": _minute(last)}
    if chance.random() < 0.3:
        parameters["tz"] = chance.choice(("Europe/Berlin", "Asia/Kolkata"))
    if chance.random() < 0.2:
        parameters["price"] = "1.37"
    if chance.random() < 0.25:
        parameters["team"] = chance.choice(("vision", "platform"))
    if chance.random() < 0.3:
        parameters["share_platform"] = chance.choice(("even", "proportional"))
    return parameters


def _minute(number: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(ms_of(FIRST) / 1000 + 60 * number, UTC).isoformat()


def as_text(answer: Any) -> str:
    return json.dumps(answer, indent=1)


def sum_and_die_once(about: tuple[LakeCluster, str], piece: LakeQuestion) -> ClusterSums:
    """Computes sums, and is killed the first time before it returns them. A file records the first time."""
    member, path = about
    found = summed(member, piece)
    died = Path(path)
    if not died.exists():
        died.write_text("killed\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if died.read_text() == "killed\n":
        died.write_text("killed\nagain\n")
    return found
