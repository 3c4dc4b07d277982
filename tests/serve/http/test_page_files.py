"""The pages that the server knows and those that the page itself knows are the same."""

from __future__ import annotations

import re
from importlib.resources import files

from pyrometer.serve.http.page_files import PAGES


def test_server_and_app_js_list_the_same_pages() -> None:
    page = files("pyrometer.serve").joinpath("page")
    listed = re.findall(
        r'\{path: "([^"]+)", .*?module: "([a-z]+)"', page.joinpath("app.js").read_text(encoding="utf-8")
    )
    assert sorted(path for path, _ in listed) == sorted(PAGES)
    assert all(page.joinpath("pages", f"{module}.js").is_file() for _, module in listed)
