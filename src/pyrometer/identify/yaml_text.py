"""YAML that people write: settings, price books, rules. Any content is read, or raises one error."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DIGITS = 100  # Python does not print a number with thousands of digits, not even to say that it is too long
MAX_MAPPING_ENTRIES = 10_000  # with those that `<<` merges: each may add twice as many as the last


class YamlError(ValueError):
    """A text that is not YAML; the message fits on one line."""


class _Loader(yaml.SafeLoader):
    """PyYAML's, which unfolds what `<<` merges without an end."""

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_MAPPING_ENTRIES:
            raise YamlError(f"a mapping has more than {MAX_MAPPING_ENTRIES:,} entries")

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MAX_DIGITS:
            raise YamlError(f"a number has more than {MAX_DIGITS} digits")
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parsed(text: str) -> Any:
    """Parses a text."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except RecursionError:
        raise YamlError("it is nested too deeply") from None
    except YamlError:
        raise
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # PyYAML believes what a value looks like, or says that it is: 2026-13-45, !!int x, !!timestamp x
        raise YamlError(f"a value is not what it seems to be: {' '.join(str(error).split())[:200]}") from None
