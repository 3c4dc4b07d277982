"""YAML that people write: settings, price books, rules. Whatever stands there, it is read, or there is one error."""

from __future__ import annotations

from typing import Any

import yaml

LONGEST_NUMBER = 100  # digits: Python writes out no number of thousands, not even to say that it is too long
MOST_MERGED = 10_000  # entries of one mapping, with those that `<<` brings: each may bring twice as many as the last


class YamlError(ValueError):
    """A text that is no YAML; the words fit on one line."""


class _Loader(yaml.SafeLoader):
    """PyYAML's, which unfolds what `<<` merges without an end."""

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_MERGED:
            raise YamlError(f"a mapping has more than {MOST_MERGED:,} entries")

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > LONGEST_NUMBER:
            raise YamlError(f"a number has more than {LONGEST_NUMBER} digits")
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parsed(text: str) -> Any:
    """What a text says."""
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
