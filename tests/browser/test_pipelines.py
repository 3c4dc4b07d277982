"""Pipelines and sweeps on the page: from the list to a run, its steps, the job of a step, and a sweep's trials."""

from __future__ import annotations

from typing import Any


def test_pipeline_links_to_jobs_and_back(looking: Any, kubeflow_url: str) -> None:
    one = looking(kubeflow_url)
    page = one.at("/pipelines")
    assert page.locator("h1").inner_text() == "$238 for 2 pipeline runs and 1 sweep"
    page.get_by_role("link", name="nightly 2026-10-08", exact=True).click()
    page.locator("h1", has_text="nightly 2026-10-08").wait_for()
    one.shown()
    rows = page.locator("tbody tr")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == [
        "prepare",
        "train",
        "evaluate",
        "attempt 1",
        "attempt 2",
        "deploy-canary",
        "register",
    ]
    assert page.locator(".gantt").count() == 7
    bars = page.locator(".gantt span").evaluate_all("all => all.map((one) => one.getBoundingClientRect().x)")
    assert bars == sorted(bars)
    one.keep("pipeline")
    page.get_by_role("link", name="PyTorchJob retrain-ranker-train-x2k9d").click()
    page.get_by_role("link", name="nightly 2026-10-08").wait_for()
    assert "step train of nightly 2026-10-08" in page.locator("main").inner_text()


def test_sweep_shows_best_trial_and_pareto_front(looking: Any, kubeflow_url: str) -> None:
    one = looking(kubeflow_url, dark=True)
    page = one.at("/pipelines?run=lr-search")
    assert page.locator("h1").inner_text() == "$24 for 10 trials of lr-search"
    one.drawn("validation-loss against dollars of 9 trials")
    assert "best" in page.locator("tbody tr").first.inner_text()
    assert "Cost of other trials" in page.locator(".tiles").inner_text()
    one.keep("sweep")
    page.get_by_role("button", name="cost").click()
    one.shown()
    assert "lr-search-27bdb820" in page.locator("tbody tr").first.inner_text()


def test_run_reported_only_by_its_controller_has_progress(looking: Any, kubeflow_url: str) -> None:
    one = looking(kubeflow_url)
    page = one.at("/run?run=gemma-sft")
    assert "reported by Kubeflow Trainer" in page.locator(".tiles").inner_text()
    one.drawn("trainjob-gemma-sft over time: loss")


def test_pipelines_page_without_pipelines_is_empty(looking: Any, trained_url: str) -> None:
    page = looking(trained_url).at("/pipelines")
    assert "No pipeline run or sweep" in page.locator("main").inner_text()
