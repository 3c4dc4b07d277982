"""A lake with an untrusted writer: a hostile manifest is refused and changes nothing."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.model.settings import SettingError, Settings, with_values
from pyrometer.questions.lake import Lake, answer_of_lake
from pyrometer.questions.parameters import QuestionError
from pyrometer.questions.registry import NotFoundError
from pyrometer.store import StoreError
from pyrometer.store.catalog import Part
from pyrometer.store.engines import Local
from pyrometer.store.lake import LakeError, LakeStorage, manifest_of
from tests.support.hand_lakes import TARIFF, copy_to_lake, facts, fill_store, lake_answer
from tests.support.histories import folder
from tests.support.hostile_names import TEXTS, VALUES, folder_contents, paths_in, rename_at, replace_at

QUESTION = {"by": "team,day", "all": "1"}
OUTSIDE = (
    "../../../outside",
    "/tmp/outside",
    "parts/../../../outside",
    "closed/../../../outside.json",
    "a\0b",
    "closed\\..\\outside",
    "closed/2026-10.json\n",
    "parts/event/2025-10-10/*.parquet",
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one cluster."""
    lake = tmp_path_factory.mktemp("lake") / "lake"
    with folder() as store:
        fill_store(store, facts(1))
        copy_to_lake(store, LakeStorage(str(lake)), "east", settings=TARIFF)
    return lake


def manifest_in(lake: Path) -> dict[str, Any]:
    return json.loads((lake / "east" / "manifest.json").read_text())


def answered(lake: Path) -> Any:
    def settings_of(manifest: Any) -> Settings:
        return with_values(Settings(), {n: v for n, v in manifest.items() if n in Settings._fields}, "The manifest")

    lake_of_test = Lake(LakeStorage(str(lake)), (), str(lake.parent / "cache"), 64, settings_of)
    return answer_of_lake(lake_of_test, "cost", QUESTION, Local())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_manifest_is_refused_or_answers_and_changes_nothing(good, data) -> None:
    manifest = manifest_in(good)
    at = data.draw(st.sampled_from([one for one in paths_in(manifest) if one]))
    if isinstance(at[-1], str) and data.draw(st.booleans()):
        changed = rename_at(manifest, at, data.draw(st.sampled_from(TEXTS)))
    else:
        changed = replace_at(manifest, at, data.draw(st.sampled_from(VALUES)))
    around = good.parent
    original = (good / "east" / "manifest.json").read_text()
    (around / "mine").write_text("mine")
    (good / "east" / "manifest.json").write_text(json.dumps(changed))
    before = folder_contents(around)
    error_text = ""
    try:
        answered(good)
    except (StoreError, SettingError, QuestionError, NotFoundError) as error:
        error_text = str(error)
    finally:
        after = folder_contents(around)
        (good / "east" / "manifest.json").write_text(original)
    assert "\n" not in error_text
    assert after == before


FIELDS = {
    "a part": lambda manifest, text: manifest["parts"][0].update(path=text),
    "another file": lambda manifest, text: manifest["beside"].update({text: 4}),
    "a kind": lambda manifest, text: manifest["parts"][0].update(kind=text),
    "the cluster": lambda manifest, text: manifest.update(cluster=text),
}


@pytest.mark.parametrize("text", OUTSIDE)
@pytest.mark.parametrize("field", FIELDS)
def test_names_outside_the_lake_are_refused(good, tmp_path, field, text) -> None:
    lake = shutil.copytree(good, tmp_path / "lake")
    manifest = manifest_in(lake)
    FIELDS[field](manifest, text)
    (lake / "east" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(LakeError, match=r"cannot be read|newer Pyrometer") as refused:
        lake_answer(LakeStorage(str(lake)), QUESTION)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("planted", ["manifest.json.tmp", "manifest.json", "parts", ""])
def test_a_copy_writes_nothing_through_a_link(tmp_path, planted) -> None:
    """Others who write to the same folder may put links there."""
    lake, mine = tmp_path / "lake", tmp_path / "mine"
    (lake / "east").mkdir(parents=True)
    mine.mkdir()
    (mine / "file").write_text("mine")
    link = lake / "east" / planted
    if not planted:
        link.rmdir()
    link.symlink_to(mine / "file" if planted.startswith("manifest") else mine)
    with folder() as store:
        fill_store(store, facts(1))
        with suppress(StoreError):
            copy_to_lake(store, LakeStorage(str(lake)), "east")
    assert folder_contents(mine) == {str(mine / "file"): b"mine"}


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_a_bucket_reaches_nothing_outside_the_cache(tmp_path, monkeypatch) -> None:
    pytest.importorskip("moto", reason="moto[s3] is not installed: pip install -e '.[heavy]'")
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AKIATESTING",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True).create_dir(
            "hostile"
        )
        place, cache = LakeStorage("s3://hostile/lake"), tmp_path / "a" / "b" / "cache"
        with folder() as data:
            fill_store(data, facts(1))
            copy_to_lake(data, place, "east")
        expected = lake_answer(place, QUESTION, cache=cache)
        shutil.rmtree(cache)
        good = json.loads(place.read("east/manifest.json") or b"")
        (tmp_path / "mine").write_text("mine")
        for up in range(1, 8):
            path = "../" * up + "mine"
            if up < 3:  # higher up is another bucket
                place.put(f"east/{path}", b"theirs")
            for changed in (
                good | {"beside": {path: 6}},
                good | {"beside": {path: 7}},
                good | {"parts": [good["parts"][0] | {"path": path}, *good["parts"][1:]]},
                good | {"cluster": path},
            ):
                place.put("east/manifest.json", json.dumps(changed).encode())
                for what in ("cost", "runs"):
                    with pytest.raises(LakeError, match="cannot be read"):
                        lake_answer(place, QUESTION if what == "cost" else {}, cache=cache, what=what)
            assert folder_contents(tmp_path) == {str(tmp_path / "mine"): b"mine"}
        place.put("east/manifest.json", json.dumps(good).encode())
        assert lake_answer(place, QUESTION, cache=cache) == expected
    finally:
        server.stop()


def test_a_manifest_is_read_as_it_was_written(good) -> None:
    manifest = manifest_of(LakeStorage(str(good)), "east")
    assert manifest is not None
    assert all(type(part) is Part for part in manifest.parts)
    assert json.loads(manifest.text()) == manifest_in(good)
