"""The API under whatever a client may ask: never an error of ours, and answers as its document says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="make test-all installs schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pyrometer.questions.parameters import COMMON_PARAMETERS, OWN_PARAMETERS  # noqa: E402
from pyrometer.serve.http.openapi import document  # noqa: E402
from tests.support.server_process import serving  # noqa: E402
from tests.support.traced_run import RUN, Trained  # noqa: E402

pytestmark = pytest.mark.heavy
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
THERE = {"run": RUN, "experiment": "sft", "step": 70, "attempt": 2}
ELSEWHERE = (
    *COMMON_PARAMETERS,
    "by",
    "sample",
    "checkpoint",
    "spikes",
)  # would ask for what is not there, or for two things
EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("night")
    Trained().store(folder).close()
    with serving(folder) as client:
        yield schemathesis.openapi.from_url(f"{client.base_url}/api/v1/openapi.json")


METHODS = {path.removeprefix("/api/v1/"): next(iter(of)).upper() for path, of in document()["paths"].items()}


@pytest.mark.parametrize(
    ("what", "about"),
    # what changes something is told anything, and does nothing: there is no month to close
    [
        (what, about)
        for what, method in METHODS.items()
        for about in ("anything", "what there is")[: 1 + (method == "GET")]
    ],
)
def test_whatever_is_asked(schema, what: str, about: str) -> None:
    operation = schema[f"/api/v1/{what}"][METHODS[what]]
    seen = []

    @EXAMPLES
    @given(operation.as_strategy())
    def ask(case) -> None:
        if about == "what there is":
            asked = case.query | ({"run": RUN} if "run" in OWN_PARAMETERS.get(what, ()) else {})
            case.query = {
                name: THERE.get(name, value) for name, value in asked.items() if name in THERE or name not in ELSEWHERE
            }
        response = case.call()
        seen.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    ask()
    given_to_all = about == "what there is" or what == "backup"  # whatever parts somebody says to have
    assert (200 if given_to_all else 400) in seen
