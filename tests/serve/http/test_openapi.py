"""The API with generated requests: no server errors, and answers that match the OpenAPI document."""

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
from tests.support.traced_run import RUN, TrainingRecords  # noqa: E402

pytestmark = pytest.mark.heavy
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXISTING = {"run": RUN, "experiment": "sft", "step": 70, "attempt": 2}
OMITTED = (*COMMON_PARAMETERS, "by", "sample", "checkpoint", "spikes")  # would name something missing, or two things
EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("night")
    TrainingRecords().store(folder).close()
    with serving(folder) as client:
        yield schemathesis.openapi.from_url(f"{client.base_url}/api/v1/openapi.json")


METHODS = {path.removeprefix("/api/v1/"): next(iter(of)).upper() for path, of in document()["paths"].items()}


@pytest.mark.parametrize(
    ("what", "about"),
    # requests that change something only get random input, and change nothing: there is no month to close
    [(what, about) for what, method in METHODS.items() for about in ("anything", "existing")[: 1 + (method == "GET")]],
)
def test_answers_match_the_openapi_document(schema, what: str, about: str) -> None:
    operation = schema[f"/api/v1/{what}"][METHODS[what]]
    seen = []

    @EXAMPLES
    @given(operation.as_strategy())
    def ask(case) -> None:
        if about == "existing":
            query = case.query | ({"run": RUN} if "run" in OWN_PARAMETERS.get(what, ()) else {})
            case.query = {
                name: EXISTING.get(name, value)
                for name, value in query.items()
                if name in EXISTING or name not in OMITTED
            }
        response = case.call()
        seen.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    ask()
    given_to_all = about == "existing" or what == "backup"  # a backup accepts every list of parts
    assert (200 if given_to_all else 400) in seen
