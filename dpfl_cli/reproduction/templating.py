"""The texts of pages: the Jinja templates beside this file, in HTML (escaped) and in Markdown."""

from collections.abc import Callable, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


TEMPLATES = Environment(
    loader=PackageLoader("dpfl_cli.reproduction"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def template(name: str) -> Callable[..., str]:
    """A template as the function that fills it in."""
    return TEMPLATES.get_template(name).render


def table_row(cells: Sequence[str]) -> str:
    """A line of a pipe table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


TEMPLATES.filters["row"] = table_row
TEMPLATES.filters["markdown"] = lambda text: Markup(MARKDOWN.renderInline(text))
