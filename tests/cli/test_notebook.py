"""Queries from Python give the answers of the commands, and tables of the same figures."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import pyrometer as sdk
from pyrometer.notebook import Answer, NotebookQueryError
from tests.support.server_process import serving

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "what-burned.ipynb"


@pytest.fixture
def asking(recorded):
    return sdk.connect(recorded)


def test_cost_equals_that_of_the_command(asking, cached_pyrometer, recorded):
    printed = cached_pyrometer(
        "cost", "--data", recorded, "--by", "state,workload", "--all", "--price", "2.50", "-o", "json"
    ).json
    answer = asking.cost(by=["state", "workload"], all=True, price=2.5)
    assert answer["total"] == printed["total"]
    table = answer.arrow()
    assert table["usd_micro"].type == pa.int64()
    assert sum(table["usd_micro"].to_pylist()) == printed["total"]["usd_micro"]
    assert table["workload_name"].to_pylist() == [(row["workload"] or {}).get("name") for row in printed["rows"]]


def test_findings_have_times_culprits_and_dollars(asking):
    answer = asking.why(all=True, price=2.5)
    table = answer.arrow()
    assert answer.tables[0] == "findings"
    assert table["from"].type == pa.timestamp("ms", "UTC")
    assert {"cause", "workload_name", "culprit_gpu", "what_if_saved_usd"} <= set(table.column_names)
    assert "culprit" not in table.column_names  # findings without a culprit have empty columns
    assert table.num_rows == len(answer["findings"]) > 0


def test_show_has_metric_curves_with_dollars(asking):
    (run,) = {row["run"] for row in asking.runs()["rows"]}
    shown = asking.show(run, price=2.5)
    curve = shown.arrow()
    (metric,) = set(curve["metric"].to_pylist())
    assert curve["value"].to_pylist() == [point[2] for point in shown["metrics"][metric]]
    assert curve["usd"].to_pylist() == pytest.approx([point[4] / 1e6 for point in shown["metrics"][metric]])
    assert curve["time"][0].as_py().tzinfo is not None
    assert shown.arrow("windows").num_rows == len(shown["windows"])


def test_time_arguments_accept_datetime(asking):
    began = datetime.fromisoformat(asking.cost(all=True)["window"]["from"]).replace(second=0)
    answer = asking.cost(since=began, all=None)
    assert datetime.fromisoformat(answer["window"]["from"]) == began.astimezone(UTC)


def test_connect_sends_the_token_to_a_server(copy_of_recorded, pyrometer, recorded):
    token = pyrometer("token", "create", "ada", "--data", copy_of_recorded).out.split()[-1]
    with serving(copy_of_recorded) as client:
        there = sdk.connect(str(client.base_url).rstrip("/"), token=token)
        assert there.cost(by="state", all=True).arrow() == sdk.connect(recorded).cost(by="state", all=True).arrow()
        with pytest.raises(Exception, match="oken"):
            sdk.connect(str(client.base_url).rstrip("/"), token="pyro_wrong").cost()


def test_invalid_questions_raise_errors_that_name_the_value(asking, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Did you mean 'team'"):
        asking.cost(by="tema")
    with pytest.raises(LookupError, match="Run 'missing' not found"):
        asking.show("missing")
    with pytest.raises(NotebookQueryError, match="It has: rows"):
        asking.runs().arrow("spans")
    with pytest.raises(FileNotFoundError, match=r"Data folder .*nowhere.* not found"):
        sdk.connect(tmp_path / "nowhere")
    monkeypatch.delenv("PYROMETER_DATA", raising=False)
    with pytest.raises(NotebookQueryError, match="PYROMETER_DATA"):
        sdk.connect()


def test_pandas_frames_keep_integers_exact():
    pytest.importorskip("pandas", reason="needs pandas: pip install 'pyrometer[notebook]'")
    exact = 2**60 + 1  # no float
    frame = Answer("cost", {"rows": [{"usd_micro": exact}, {"usd_micro": None}]}).pandas()
    assert frame.usd_micro.sum() == exact


@pytest.mark.heavy
def test_example_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient, ipykernel: make test-all")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, ipykernel: make test-all")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs if "data" in output
    ]
    assert sum("application/vnd.plotly.v1+json" in output.data for output in shown) >= 2
    assert any("vit-huge" in output.data.get("text/html", "") for output in shown)
