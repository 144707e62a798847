"""Takes screenshots of HTML pages and checks their width: `python docs/screenshots.py --out FOLDER PAGE.html ...`.

Each page is drawn by headless Chromium at 390 and 1280 px, light and dark, in its full height. Exit code 1 and a line
for each fault: a page that scrolls sideways, or, at 1280 px, code or a table that is wider than its column. A folder
stands for its pages. Without `--out` nothing is drawn, and without Chromium nothing is checked.
"""

import argparse
import html
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

WIDTHS = (390, 1280)
SCHEMES = {"light": 1, "dark": 0}  # as Chromium counts them
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BATCH = 6  # pages that are measured at once
TALLEST = 12_000  # pixels; the rest of a longer page is cut off
WIDE = 1000  # from this width on nothing scrolls inside its column

PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const page = document.documentElement
  const wide = [...document.querySelectorAll("pre, pre > code, .md-typeset__scrollwrap, table, div")].filter(
    part => part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 50
      && ["auto", "scroll"].includes(getComputedStyle(part).overflowX))
  parent.postMessage(JSON.stringify({NUMBER: {
    height: Math.ceil(Math.max(page.scrollHeight, document.body.scrollHeight)),
    over: page.scrollWidth - page.clientWidth,
    wide: wide.map(part => part.textContent.trim().replace(/\\s+/g, " ").slice(0, 60)),
  }}), "*")
}, 300))
</script>"""
FRAME = """<!doctype html><html style="color-scheme: SCHEME"><body style="margin: 0"><script>
const reports = {}
addEventListener("message", event => {
  document.body.dataset.report = JSON.stringify(Object.assign(reports, JSON.parse(event.data)))
})
</script>FRAMES</body></html>"""


def browser() -> str | None:
    """The path of the browser, if there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def chromium(folder: Path, scheme: str, size: tuple[int, int], *options: str) -> str:
    """Opens the frame in a window and returns what Chromium prints."""
    command = [
        *(str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access"),
        *("--virtual-time-budget=5000", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"),
        *(f"--window-size={size[0]},{size[1]}", f"--user-data-dir={folder / scheme}", *options),
        (folder / "frame.html").as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def write_frame(folder: Path, numbers: range, width: int, height: int, scheme: str) -> None:
    """A page with frames as wide as the screen: a window of Chromium is at least 500 px wide."""
    style = f"border: 0; display: block; width: {width}px; height: {height}px; color-scheme: {scheme}"
    frames = "".join(f'<iframe src="page{number}.html" style="{style}"></iframe>' for number in numbers)
    (folder / "frame.html").write_text(FRAME.replace("SCHEME", scheme).replace("FRAMES", frames))


def pages_of(path: Path) -> list[Path]:
    """The page, or those in the folder but for the source code, whose lines may scroll."""
    if path.is_file():
        return [path]
    return sorted(
        page for page in path.rglob("*.html") if path / "source" not in page.parents and page.name != "404.html"
    )


def write_page(page: Path, folder: Path, number: int) -> None:
    """A copy of the page that tells the frame around it how wide it is."""
    base = f'<head><base href="{page.resolve().as_uri()}">'
    text = page.read_text(encoding="utf-8").replace("<head>", base, 1) + PROBE.replace("NUMBER", str(number))
    (folder / f"page{number}.html").write_text(text, encoding="utf-8")


def measured(folder: Path, n_pages: int, width: int, scheme: str) -> list[dict[str, Any]]:
    """Of each page the height, and what is too wide."""
    write_frame(folder, range(n_pages), width, 900, scheme)
    page = chromium(folder, scheme, (max(width, 500), 900), "--dump-dom")
    reports = json.loads(html.unescape(page.partition('data-report="')[2].partition('"')[0]))
    return [reports[str(number)] for number in range(n_pages)]


def draw(folder: Path, number: int, width: int, scheme: str, height: int, picture: Path) -> None:
    """The screenshot of a page."""
    write_frame(folder, range(number, number + 1), width, height, scheme)
    chromium(folder, scheme, (max(width, 500), height), f"--screenshot={picture}")
    with Image.open(picture) as drawn:
        drawn.crop((0, 0, width, height)).save(picture)


def faults(pages: list[Path], out: Path | None) -> list[str]:
    """Says what is too wide on some pages, and draws them in all sizes and schemes if there is a folder for it."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, page in enumerate(pages):
            write_page(page, folder, number)
        for width, scheme in itertools.product(WIDTHS, SCHEMES if out else ["light"]):
            for number, report in enumerate(measured(folder, len(pages), width, scheme)):
                page = pages[number]
                if out is not None:
                    picture = out.resolve() / f"{page.parent.name}-{page.stem}-{width}-{scheme}.png"
                    draw(folder, number, width, scheme, min(report["height"], TALLEST), picture)
                if scheme == "light":
                    found += [f"{page} at {width} px: {report['over']} px too wide"] if report["over"] > 0 else []
                    found += [f"{page} at {width} px: scrolls: {part}" for part in report["wide"] if width >= WIDE]
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="screenshots of pages at 390 and 1280 px, light and dark")
    parser.add_argument("pages", type=Path, nargs="+", help="HTML files, or folders of them")
    parser.add_argument("--out", type=Path, help="folder for the pictures; without, only the widths are checked")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    if browser() is None:
        print(f"no page is checked: none of {', '.join(BROWSERS)} is installed")
        return int(given.out is not None)
    pages = [page for path in given.pages for page in pages_of(path)]
    batches = [pages[first : first + BATCH] for first in range(0, len(pages), BATCH)]
    found = [fault for batch in batches for fault in faults(batch, given.out)]
    print("\n".join(found) if found else f"{len(pages)} pages: nothing is too wide")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
