"""A run's identity: the hash of everything that can change its numbers.

Hashed are the revision of every component that a run uses, the content of its data, and every
option that is not at its registered default. So an option that is added later, with the old
behaviour as its default, moves no id; and since a revision fixes the defaults of its component, an
option that is left out of the hash still means one value. A default that changes therefore raises
the revision: `tests/defaults.json` holds the defaults of every revision, and a test compares.

The registered default is the one that the settings class gives the option. An option without one
there is hashed whatever its value. The values in conf/<group>/<name>.yaml are what a user gets who
says nothing; they are not registered defaults, since they may follow from other options (a
dataset's hints, the trust model), and components of plugins have none.

A run's config.yaml holds every option for people and tables to read, and under `unhashed` the keys
that the hash leaves out. So an id can be checked from the file alone, also after defaults have
changed.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

ID_DIGITS = 12


def canonical_json(values: Any) -> str:
    """One text for equal values: sorted keys, no spaces, shortest float digits."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def text_of(value: Any) -> str:
    """A config value as it is written on the command line.

    >>> text_of(True), text_of(None), text_of(0.5)
    ('true', 'null', '0.5')
    """
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def content_id(values: Any) -> str:
    """The first 12 hex digits of the SHA-256 of the canonical text.

    >>> content_id({"a": 1, "b": 2.0}) == content_id({"b": 2.0, "a": 1})
    True
    """
    return digest(values)[:ID_DIGITS]


def digest(values: Any) -> str:
    """The SHA-256 of the canonical text."""
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


UNHASHED = "unhashed"  # of a config.yaml: the keys that are no part of the identity


def stored_config(config: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the keys that its identity leaves out.

    >>> stored_config({"a": {"b": 1, "c": 2}, "seed": 0}, {"a": {"c": 2}, "seed": 0})["unhashed"]
    ['a.b']
    """
    return {**config, UNHASHED: sorted(flat(config).keys() - flat(identity).keys())}


def identity_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The identity in a `stored_config`.

    >>> identity_of({"a": {"b": 1, "c": 2}, "seed": 0, "unhashed": ["a.b"]})
    {'a': {'c': 2}, 'seed': 0}
    """
    left_out = stored.get(UNHASHED, ())
    hashed = {
        group: {key: value for key, value in values.items() if f"{group}.{key}" not in left_out}
        if isinstance(values, Mapping)
        else values
        for group, values in stored.items()
        if group != UNHASHED
    }
    return {group: values for group, values in hashed.items() if values != {}}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):  # asking for a Mapping takes thrice as long
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[f"{prefix}{key}"] = value
    return result
