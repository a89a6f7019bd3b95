"""The texts of pages: the Jinja templates beside this file, in HTML (escaped) and in Markdown."""

from collections.abc import Callable, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


@cache
def template(name: str) -> Callable[..., str]:
    """A template as the function that fills it in."""
    templates = Environment(
        loader=PackageLoader("dpfl_cli.reproduction"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["row"] = table_row
    templates.filters["markdown"] = lambda text: Markup(MARKDOWN.renderInline(text))
    return templates.get_template(name).render


def table_row(cells: Sequence[str]) -> str:
    """A line of a pipe table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
