"""The glossary: every term has a definition, and discouraged words are not terms."""

from __future__ import annotations

from pyrometer.model.glossary import GLOSSARY

TERMS = [term for terms in GLOSSARY.values() for term in terms]
NAMES = [name for term in TERMS for name in term.name.split(", ")]


def test_terms_are_unique_and_defined():
    assert len(set(NAMES)) == len(NAMES)
    assert all(term.meaning.endswith(".") for term in TERMS)


def test_discouraged_words_are_not_terms():
    assert not {word for term in TERMS for word in term.avoid} & set(NAMES)
