"""A run's identity: the hash of everything that can change its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

ID_DIGITS = 12


def canonical_json(values: Any) -> str:
    """One text for equal values: sorted keys, no spaces, shortest float digits."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def content_id(values: Any) -> str:
    """The first 12 hex digits of the SHA-256 of the canonical text.

    >>> content_id({"a": 1, "b": 2.0}) == content_id({"b": 2.0, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()[:ID_DIGITS]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[f"{prefix}{key}"] = value
    return result
