"""Looks at the report in a real browser: `python -m tests.browser.report [SITE]`.

Every kind of page at the width of a phone and of a desk: nothing is wider than the window, no
script fails, the filter filters, columns sort and the plot is drawn. Exit code 1 says what is
wrong. Without a site it makes that of outputs/published.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTHS = (390, 1280)
# Every page in a frame of its own; what is found is written into the outer page.
OUTER = """<!doctype html><pre id="found"></pre><script>
const pages = PAGES, widths = WIDTHS, found = [];
const look = (page, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => {
    const inner = frame.contentDocument, root = inner.documentElement;
    const field = inner.querySelector("input.filter");
    const one = {page, width, wide: root.scrollWidth, filtered: null, sorted: null};
    if (field) {
      const table = field.nextElementSibling.nextElementSibling.querySelector("table");
      const count = () => table.querySelectorAll("tbody tr:not([hidden])").length;
      const before = count();
      field.value = "zzz no such word";
      field.dispatchEvent(new frame.contentWindow.Event("input"));
      one.filtered = [before, count()];
      field.value = "";
      field.dispatchEvent(new frame.contentWindow.Event("input"));
      const head = table.tHead.rows[0].cells[0];
      head.click(); head.click();
      const texts = [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
      one.sorted = texts[0].localeCompare(texts[texts.length - 1]) >= 0;
    }
    one.plot = inner.getElementById("plot") ? inner.querySelectorAll("#plot select").length : null;
    const some = (selector) => Boolean(inner.querySelector(selector));
    one.alive = some("table.sortable") === some("th[tabindex]");
    found.push(one);
    frame.remove();
    done();
  };
  frame.src = page;
  document.body.append(frame);
});
(async () => {
  for (const page of pages) for (const width of widths) await look(page, width);
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


def main(words: list[str]) -> int:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no chromium here: the report was not looked at in a browser")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        site = Path(words[0]) if words else _made(Path(folder))
        artifacts = sorted(site.glob("*/*/*/index.html"))
        pages = [*sorted(site.glob("*.html")), *artifacts[:: max(1, len(artifacts) // 8)]]
        wrong = _wrong(_looked(chromium, pages))
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages of the report in a browser: {len(wrong)} things wrong")
    return 1 if wrong else 0


def _made(outputs: Path) -> Path:
    from dpfl_cli.papers import artifacts
    from dpfl_cli.reproduction.report import write_report

    (outputs / "published").symlink_to(ROOT / "outputs/published")
    return write_report(outputs, artifacts(), "dpfl report").parent


def _looked(chromium: str, pages: list[Path]) -> list[dict[str, object]]:
    """What every page is like at every width."""
    with tempfile.TemporaryDirectory() as folder:
        outer = Path(folder) / "outer.html"
        urls = json.dumps([page.resolve().as_uri() for page in pages])
        outer.write_text(OUTER.replace("PAGES", urls).replace("WIDTHS", json.dumps(WIDTHS)))
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
        ]
        flags += ["--virtual-time-budget=60000", "--enable-logging=stderr", "--dump-dom"]
        done = subprocess.run(
            [chromium, *flags, f"--user-data-dir={folder}/profile", outer.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    (text,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    if said or not text:
        raise SystemExit("\n".join(["a script of the report failed", *said]))
    return list(json.loads(html.unescape(text)))


def _wrong(looks: list[dict[str, object]]) -> list[str]:
    lines = []
    for one in looks:
        where = f"{one['page']} at {one['width']} px"
        if int(str(one["wide"])) > int(str(one["width"])):
            lines.append(f"{where}: {one['wide']} px wide")
        if isinstance(one["filtered"], list) and (not one["filtered"][0] or one["filtered"][1]):
            lines.append(f"{where}: the filter left {one['filtered'][1]} of {one['filtered'][0]}")
        if one["sorted"] is False:
            lines.append(f"{where}: a column does not sort")
        if one["plot"] == 0:
            lines.append(f"{where}: no plot was drawn")
        if not one["alive"]:
            lines.append(f"{where}: the script did not run")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
