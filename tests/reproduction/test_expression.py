"""The language of predicates: what it says, and what it refuses."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.expression import Untestable, check_expression, compute, evaluate
from dpfl_cli.reproduction.rows import Row, Rows

ROWS = Rows(
    [
        *(
            Row({"method": "A", "clients": m}, "loss", loss, std=0.1, n=3, paper=2.5)
            for m, loss in ((10, 3.0), (100, 2.0), (1000, 1.0))
        ),
        *(Row({"method": "B", "clients": m}, "loss", loss) for m, loss in ((1000, 4.0), (10, 6.0), (100, 5.0))),
        Row({"method": "C", "clients": 10}, "loss", float("inf"), n=2, diverged=2),
        Row({"method": "D", "clients": 10}, "loss", float("nan"), n=2, diverged=1),
        *(Row({"round": number}, "accuracy", value) for number, value in ((10, 0.9), (0, 0.1), (5, 0.6))),
    ],
    ["method", "clients", "round"],
)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ('value("loss", method="A", clients=10) == 3', True),
        ('value("loss", method="A", clients=10) < value("loss", method="B", clients=10)', True),
        ('1 < value("loss", method="A", clients=100) < 2', False),
        ('all(value("loss", method="A", clients=m) < value("loss", method="B", clients=m) for m in choices("clients"))', True),
        ('any(value("loss", method="A", clients=m) > 2.5 for m in choices("clients") if m > 10)', False),
        ('all(v > 0 and not v > 6 for m in ["A", "B"] for v in values("loss", method=m))', True),
        ('values("loss", method="B") == [6, 5, 4]', True),
        ('decreasing(values("loss", method="A"))', True),
        ('increasing(values("loss", method="A"))', False),
        ('increasing(values("loss", method="A"), 1.5)', True),
        ('values("loss", method="A")[-1] == 1 and len(values("loss", method="A")[:2]) == 2', True),
        ('mean(values("loss", method="B", clients=between(100, 1000))) == 4.5', True),
        ('abs(value("loss", method="A", clients=10) - paper("loss", method="A", clients=10)) <= 0.5', True),
        ('std("loss", method="A", clients=10) == 0.1 and runs("loss", method="A", clients=10) == 3', True),
        ('value("loss", method="A", clients=10) < value("loss", method="C", clients=10)', True),
        ('diverged("loss", method="C", clients=10) == 2', True),
        ('crossing(sorted(values("loss", method="A")), 2) == 1', True),
        ('crossing(sorted(values("loss", method="A")), 2, choices("clients")) == 100', True),
        ('crossing(values("loss", method="A"), 9, choices("clients")) > 1000000', True),
        ('rounds("accuracy") == [0, 5, 10] and crossing(values("accuracy"), 0.5, rounds("accuracy")) == 5', True),
        ('r2(choices("clients"), [2 * m + 1 for m in choices("clients")]) > 0.999', True),
        ('all(a < b for a, b in zip(values("loss", method="A"), values("loss", method="B")))', True),
        ("max(1, 2) == 2 and min([3, 4]) == 3 and -sqrt(4) == -2 and sum([1, 2]) == 3", True),
    ],
)
def test_predicates_say_what_they_say(text: str, truth: bool) -> None:
    assert evaluate(text, ROWS) is truth


@pytest.mark.parametrize(
    "text",
    [
        "().__class__.__bases__[0].__subclasses__() == 1",
        "value.__globals__ == 1",
        '"a".upper() == "A"',
        '__import__("os") == 1',
        'open("x") == 1',
        'eval("1") == 1',
        'getattr(value, "x") == 1',
        "(lambda: 1)() == 1",
        '[x for x in values("loss") if (y := 1)] == 1',
        'value(*["loss"]) == 1',
        'value("loss", **{"method": "A"}) == 1',
        '{"a": 1} == 1',
        "{1, 2} == 1",
        "7 % 2 == 1",
        "1 if True else 0",
        'f"{1}" == "1"',
        'b"1" == 1',
        "x == 1",
        "value == 1",
        "all(_x == 1 for _x in [1])",
        "all(value == 1 for value in [1])",
        "all(x.real == 1 for x in [1])",
        "max([1], key=abs) == 1",
        'values("loss")[::2] == 1',
        "import os",
        "a = 1",
        "1 is 1",
        'value("loss"',
        'await value("loss")',
        "",
    ],
)
def test_everything_else_is_refused_before_it_is_evaluated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_expression(text, ["loss"], ["method", "clients"])
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError):
        evaluate(text, ROWS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('value("losss") == 1', "did you mean loss?"),
        ('value("loss", metod="A") == 1', "did you mean method?"),
        ('valu("loss") == 1', "did you mean value?"),
        ("value() == 1", "takes one measure"),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        check_expression(text, ["loss"], ["method", "clients"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('value("loss", method="E", clients=10) == 1', "no number for loss, method=E"),
        ('values("loss", method="E") == [1]', "no numbers for loss"),
        ('value("loss", method="D", clients=10) < 1', "1 of 2 runs diverged"),
        ('std("loss", method="B", clients=10) < 1', "no spread with 1 run"),
        ('paper("loss", method="B", clients=10) < 1', "the paper gives no number"),
        ('all(m > 1 for m in choices("clients") if m > 5000)', "no numbers to take"),
        ('value("loss", method="A", clients=10) / (1 - 1) > 0', "division by zero"),
        ('crossing(values("loss", method="A"), 2, [1, 2]) == 1', "crossing of 3 numbers at 2 places"),
    ],
)
def test_a_missing_number_is_untestable_never_true(text: str, says: str) -> None:
    with pytest.raises(Untestable, match=says):
        evaluate(text, ROWS)


@pytest.mark.parametrize(
    "text",
    [
        'value("loss", method="A") == 1',
        'values("loss") == [1]',
        'value("loss", method="A", clients=10)',
        'all(values("loss", method="A"))',
        '"a" * 1000000000 == 1',
        'value("loss", method="A", clients=10) < "a"',
        'values("loss", method="A")[7] == 1',
        'rounds("loss", method="A") == [1]',
        'not value("loss", method="A", clients=10)',
    ],
)
def test_what_is_ambiguous_or_no_statement_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        evaluate(text, ROWS)
    assert "\n" not in str(refused.value)


def test_a_formula_computes_from_facts() -> None:
    facts = {"clients": 10, "dimension": 7}
    assert compute('2 * fact("clients") * sqrt(fact("dimension") + 2)', facts.__getitem__) == 60.0
    assert compute('fact("clients") ** 2 / 2 ** -1', facts.__getitem__) == 200.0
    for text in ('value("loss") + 1', 'fact("clients") > 3', '"a"', "1 / 0", "fact.__self__", "9 ** 9 ** 9 ** 9", "(-2) ** 0.5"):
        with pytest.raises(ConfigError):
            compute(text, facts.__getitem__)


@given(st.text(max_size=60))
def test_no_text_gets_past_the_language(text: str) -> None:
    with contextlib.suppress(ConfigError, Untestable):
        assert evaluate(text, ROWS) in (True, False)
