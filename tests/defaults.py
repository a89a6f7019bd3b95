"""The registered defaults of every revision, kept in a file: an option at its default is not
hashed, so a default must not change under a revision that runs were made with.

`python -m tests.defaults` writes down what is new. It refuses a default that changed, an option
that is gone or a new option without a default under a revision that is in the file: raise the
revision.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dpfl_cli.config.component import GROUPS, Settings, components
from dpfl_cli.config.schema import DpSettings, EvaluationSettings, ParticipationSettings
from dpfl_cli.simulation.plan import load_components
from dpfl_cli.simulation.run_plan import ENGINE_REVISION

FILE = Path(__file__).with_name("defaults.json")
REQUIRED = "(required)"  # in place of a default: the option is hashed whatever its value


def registered(settings: type[Settings]) -> dict[str, Any]:
    """Option -> default of a settings class, as JSON has it."""
    return {
        name: REQUIRED if info.is_required() else json.loads(json.dumps(info.default))
        for name, info in settings.model_fields.items()
    }


def current() -> dict[str, dict[str, Any]]:
    """Component and revision -> its options and their defaults."""
    load_components()
    found = {
        f"{group}={name} revision {one.revision}": registered(one.settings)
        for group in GROUPS
        for name, one in components(group).items()
        if one.origin == "dpfl"
    }
    sections = {
        "dp": DpSettings,
        "evaluation": EvaluationSettings,
        "participation": ParticipationSettings,
    }
    for name, settings in sections.items():
        found[f"{name} engine {ENGINE_REVISION}"] = registered(settings)
    return dict(sorted(found.items()))


def problems(kept: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """What changed under a revision that is kept, in a line each."""
    found = []
    for key in kept.keys() & now.keys():
        old, new = kept[key], now[key]
        for name in old:
            if name not in new:
                found.append(f"{key}: option {name} is gone: raise the revision")
            elif new[name] != old[name]:
                found.append(
                    f"{key}: the default of {name} was {old[name]!r} and is {new[name]!r}: raise "
                    "the revision"
                )
        for name in new.keys() - old.keys():
            if new[name] == REQUIRED:
                found.append(
                    f"{key}: option {name} is new and has no default, so every id changes: give "
                    "it one with the old behaviour, or raise the revision"
                )
    return sorted(found)


def main() -> int:
    kept, now = json.loads(FILE.read_text()) if FILE.exists() else {}, current()
    found = problems(kept, now)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        FILE.write_text(json.dumps(dict(sorted((kept | now).items())), indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
