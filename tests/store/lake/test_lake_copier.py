"""A lake is complete at every moment: after a crash while copying, its manifest lists only existing files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyrometer.store.lake import LakeError, LakeStorage, manifest_of
from pyrometer.store.lake.lake_copier import GRACE_MS, STAGING, LakeCopier
from pyrometer.store.lake.manifest import folder_name
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.hand_lakes import COVERED, as_text, copy_to_lake, facts, fill_store, folder_answer, lake_answer
from tests.support.hand_ledgers import FIRST, random_day, write_days
from tests.support.histories import folder

QUESTION = {"by": "team,day", "all": "1"}


class Killed(BaseException):
    """The process ends here."""


class Dying(LakeStorage):
    """A lake whose writer is killed at its n-th step, half of a file written."""

    def __init__(self, url: str, steps: int) -> None:
        super().__init__(url)
        self.steps = steps

    def put(self, path: str, source: Path | bytes) -> None:
        if self._over():
            half = Path(self.url, f"{path}.tmp")  # as it is written before it has its name
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes((source if isinstance(source, bytes) else source.read_bytes())[:-3])
            raise Killed
        super().put(path, source)

    def remove(self, path: str) -> None:
        if self._over():
            raise Killed
        super().remove(path)

    def _over(self) -> bool:
        self.steps -= 1
        return self.steps < 0


def whole(place: LakeStorage, cluster: str = "east") -> None:
    """Every file in the manifest exists with its recorded size."""
    manifest = manifest_of(place, cluster)
    assert manifest is not None
    sizes = place.sizes(folder_name(cluster))
    assert {path: sizes.get(path) for path in manifest.named} == manifest.named


@settings(max_examples=EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48))
def test_a_crash_at_any_step_leaves_the_old_lake_or_the_new_one(seed: int) -> None:
    with folder() as store, TemporaryDirectory() as beside:
        first, lake = LakeStorage(f"{beside}/first"), LakeStorage(f"{beside}/lake")
        fill_store(store, facts(seed))
        copy_to_lake(store, first, "east")
        write_days(store, {FIRST: random_day(random.Random(seed), FIRST)})
        copy_to_lake(store, first, "east")  # what was replaced is left in it
        before = as_text(folder_answer(store, QUESTION))
        write_days(store, {FIRST: random_day(random.Random(seed + 1), FIRST)})
        store.append([record._replace(time_ms=record.time_ms + 1) for record in facts(seed + 1).objects])  # other names
        after = as_text(folder_answer(store, QUESTION))
        later_ms, steps = COVERED.end_ms + GRACE_MS + 1, 0
        while True:
            shutil.rmtree(lake.url, ignore_errors=True)
            shutil.copytree(first.url, lake.url)
            try:
                copy_to_lake(store, lake, "east", now_ms=later_ms, by=LakeCopier(Dying(lake.url, steps)))
                break
            except Killed:
                steps += 1
            whole(lake)
            assert as_text(lake_answer(lake, QUESTION)) in (before, after)
            if steps % 3 == 1:  # the next copy continues there
                copy_to_lake(store, lake, "east", now_ms=later_ms)
                whole(lake)
                assert as_text(lake_answer(lake, QUESTION)) == after
        assert steps == 8, "a part and its sums, three kinds of objects, the manifest, what goes of both"
        copy_to_lake(store, lake, "east", now_ms=later_ms + GRACE_MS + 1)
        assert set(lake.sizes("east")) == {*manifest_of(lake, "east").named, "manifest.json"}, "nothing else is left"
        assert not (store.folder / STAGING).exists()


def test_a_second_copy_is_empty_and_old_files_are_removed_later(tmp_path) -> None:
    lake, day_ms = LakeStorage(str(tmp_path)), 86_400_000
    with folder() as store:
        fill_store(store, facts(1))
        copier, start_ms = LakeCopier(lake), COVERED.end_ms
        first = copy_to_lake(store, lake, "east", by=copier)
        assert first.files == len(manifest_of(lake, "east").named) > 10
        written = (tmp_path / "east" / "manifest.json").stat().st_mtime_ns
        for by in (copier, LakeCopier(lake)):
            assert copy_to_lake(store, lake, "east", now_ms=start_ms + 1, by=by) == (0, 0, 0)
        assert (tmp_path / "east" / "manifest.json").stat().st_mtime_ns == written
        old = manifest_of(lake, "east")
        store.drop_before(COVERED.from_ms + 2 * day_ms, ["ledger_row", "energy"])  # as retention does
        assert copy_to_lake(store, lake, "east", now_ms=start_ms + 2, by=copier) == (0, 0, 0)
        dropped = set(old.named) - set(manifest_of(lake, "east").named)
        assert len(dropped) == 4
        assert dropped < set(lake.sizes("east")), "who has the old manifest can still read it"
        assert copy_to_lake(store, lake, "east", now_ms=start_ms + GRACE_MS, by=LakeCopier(lake)).removed == 0
        assert copy_to_lake(store, lake, "east", now_ms=start_ms + 2 + GRACE_MS, by=LakeCopier(lake)).removed == 4
        assert not dropped & set(lake.sizes("east"))
        assert as_text(lake_answer(lake, QUESTION)) == as_text(folder_answer(store, QUESTION))


def test_hot_objects_are_copied(tmp_path) -> None:
    """Objects are sealed a day later; until then they are in the lake as they are."""
    lake = LakeStorage(str(tmp_path))
    with folder() as store:
        fill_store(store, facts(2))
        assert store.hot_tables()
        copy_to_lake(store, lake, "east")
        assert len({row["team"] for row in lake_answer(lake, {"all": "1"})["rows"]}) > 2
        store.seal()
        assert copy_to_lake(store, lake, "east").files > 0
        whole(lake)
        assert not [part for part in manifest_of(lake, "east").parts if part.path.startswith("hot/")]
        assert as_text(lake_answer(lake, QUESTION)) == as_text(folder_answer(store, QUESTION))


def test_two_folders_do_not_write_to_one_cluster(tmp_path) -> None:
    lake = LakeStorage(str(tmp_path))
    with folder() as one, folder() as other:
        for store in (one, other):
            fill_store(store, facts(3))
        copy_to_lake(one, lake, "east")
        with pytest.raises(LakeError, match=r"'east' of the lake .* is copied from another data folder"):
            copy_to_lake(other, lake, "east")
        copy_to_lake(other, lake, "gke:eu/west.1")
        assert sorted(lake.folders()) == ["east", "gke%3Aeu%2Fwest.1"]
        assert len(lake_answer(lake, {"by": "cluster", "all": "1"})["rows"]) == 2


def test_missing_and_empty_lakes_are_reported(tmp_path) -> None:
    with pytest.raises(LakeError, match=r"There is no lake in .*: the folder does not exist"):
        lake_answer(LakeStorage(str(tmp_path / "no")), {})
    with pytest.raises(LakeError, match=r"has no cluster yet"):
        lake_answer(LakeStorage(str(tmp_path)), {})
    (tmp_path / "east").mkdir()
    (tmp_path / "east" / "manifest.json").write_text('{"half": ')
    with pytest.raises(LakeError, match=r"manifest.json of 'east' .* cannot be read"):
        lake_answer(LakeStorage(str(tmp_path)), {})
    with pytest.raises(LakeError, match=r"has no cluster 'west'. There: east"):
        lake_answer(LakeStorage(str(tmp_path)), {}, clusters=["west"])
