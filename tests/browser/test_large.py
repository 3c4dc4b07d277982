"""Every page with ten thousand GPUs. benchmarks/page.py measures the speed."""

from __future__ import annotations


def test_ten_thousand_cells_describe_their_gpu(looking, large_url):
    one = looking(large_url)
    page = one.at("/cluster")
    one.keep("cluster-10000")
    assert page.locator("h1 b").inner_text() == "10,000"
    box = page.locator("#cells").bounding_box()
    for step in range(60):
        page.mouse.move(box["x"] + 5 + step * 12, box["y"] + 40 + step * 6)
    assert page.locator(".tip b").inner_text().startswith("GPU ")
    page.locator("#cells").focus()
    page.keyboard.press("End")
    assert page.locator("#cell-description").inner_text().startswith("GPU ")


def test_every_page_shows_ten_thousand_gpus(looking, large_url):
    one = looking(large_url)
    shown = {
        "/": "burned",
        "/experiments": "experiments cost",
        "/worth": "for ",
        "/run": "runs",
        "/chargeback": "to charge",
    }
    for path, heading in shown.items():
        assert heading in one.at(path).locator("h1").inner_text()
        one.keep(f"{path.strip('/') or 'burn'}-10000")
